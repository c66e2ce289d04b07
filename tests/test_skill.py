"""What agents read: SKILL.md and llms.txt."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import typer.main

import perfhooks
from perfhooks.analysis.comparison.difference import Outcome
from perfhooks.analysis.comparison.verdict import Verdict
from perfhooks.cli.app import app

ROOT = Path(__file__).parents[1]
SKILL = (ROOT / "SKILL.md").read_text(encoding="utf-8")
VERBS = typer.main.get_command(app).commands


def test_skill_has_a_head_and_at_most_80_lines():
    assert len(SKILL.splitlines()) <= 80
    assert re.match(r"---\nname: perfhooks\ndescription: \S[^\n]+\n---\n", SKILL)


def test_commands_of_the_skill_exist_with_their_options():
    lines = [line for block in re.findall(r"```sh\n(.*?)```", SKILL, re.DOTALL) for line in block.splitlines()]
    commands = [
        words[words.index("perfhooks") + 1 :]
        for line in lines
        if "perfhooks" in (words := shlex.split(line, comments=True))
    ]
    assert {verb for verb, *_ in commands} == {"run", "show", "compare", "tune"}
    for verb, *arguments in commands:
        VERBS[verb].make_context(verb, arguments)  # raises on wrong options


def test_fields_of_the_skill_are_those_of_the_files():
    schema = json.loads(Path(perfhooks.__file__).with_name("findings.schema.json").read_bytes())
    fields = {name for of_one in schema["$defs"].values() for name in of_one.get("properties", {})}
    for dotted in re.findall(r"`((?:step|findings\[\])\.[a-z_.\[\]]+)`", SKILL):
        assert set(dotted.replace("[]", "").split(".")) <= fields, dotted
    for name in re.findall(r"`verdict\.([a-z]+)`", SKILL):
        assert name == "sentence" or hasattr(Verdict, name) or name in Verdict.__annotations__, name
    assert all(f"`{outcome}`" in SKILL for outcome in Outcome.__args__)


def test_links_of_llms_txt_are_pages_of_the_site():
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "docs/llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 10
    assert [link for link in links if link != "./" and not (ROOT / "docs" / f"{link.rstrip('/')}.md").is_file()] == []
