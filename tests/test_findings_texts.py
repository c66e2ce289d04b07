"""Texts of findings: rules and files have the same names, fields and frameworks, and sentences are short."""

import ast
import functools
import inspect
import re
import string
import textwrap
from pathlib import Path

import msgspec
import pytest

from perfhooks.analysis import findings
from perfhooks.analysis.findings import frameworks, texts
from perfhooks.analysis.findings.data import LoaderUse
from perfhooks.analysis.findings.finding import WAITING
from perfhooks.analysis.ranks.findings import STRAGGLER
from perfhooks.trace.names.devices import Device

FOLDER = Path(findings.__file__).parent
RULES = {rule.__name__.replace("_", "-"): rule for rule in (*findings.RULES, *findings.RUN_RULES)}
COMMON = {"unit", "device", "device_type"}
"""Fields that each rule of a window has."""
PACKAGES = {texts.TORCH, *frameworks.PACKAGES.values()}
AVOIDED = re.compile(
    r"\b(nobody|somebody|whoever|processors?|looks? at|is told|is said|hands? over|eats?|stands?)\b", re.IGNORECASE
)


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def trees(rule):
    """The module of a rule, and those that it imports from the folder of rules."""
    module = parsed(Path(inspect.getfile(RULES[rule])))
    imports = [node for node in ast.walk(module) if isinstance(node, ast.ImportFrom)]
    named = [
        name
        for node in imports
        if (node.module or "").startswith("perfhooks.analysis.findings")
        for name in [node.module.rpartition(".")[2], *(alias.name for alias in node.names)]
    ]
    paths = [FOLDER / f"{name}.py" for name in dict.fromkeys(named)]
    return [module, *(parsed(path) for path in paths if path.exists())]


@functools.cache
def nodes_in(tree):
    return list(ast.walk(tree))


def calls(trees, name):
    found = [node for tree in trees for node in nodes_in(tree) if isinstance(node, ast.Call)]
    return [call for call in found if name in (getattr(call.func, "id", ""), getattr(call.func, "attr", ""))]


def constants(node):
    return {each.value for each in nodes_in(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def keywords(call):
    """The names of the arguments; "*" for those of a dictionary."""
    return {keyword.arg or "*" for keyword in call.keywords}


@functools.cache
def call_of(rule):
    """The call that makes the texts of a rule."""
    source = LoaderUse.advise if rule == WAITING else RULES[rule]
    return next(iter(calls([ast.parse(textwrap.dedent(inspect.getsource(source)))], "texts")), None)


def supplied(rule):
    if call_of(rule):
        return COMMON | keywords(call_of(rule))
    return {"share", "period", "mean_ms"} if rule == "slow-steps" else {"share"}


def templates(rule):
    """All texts of a file without the phrases, by kind."""
    of_rule = texts.of_rule(rule)
    for version in (of_rule, *of_rule.versions.values()):
        for kind in ("title", "estimate", "fix"):
            yield kind, texts.one_line(getattr(version, kind))
        codes = version.code.values() if isinstance(version.code, dict) else [version.code]
        yield from (("code", code) for code in codes)


def fields(template):
    """The fields of a template without attributes, with their format specifications."""
    return [(name, spec) for _, name, spec, _ in string.Formatter().parse(template) if name is not None]


def phrases(rule):
    """The calls for phrases of the evidence: name and fields. A computed name may be each constant of its module."""
    for tree in trees(rule):
        for call in [*calls([tree], "text"), *calls([tree], "_phrase")]:
            for name in (constants(call.args[0]) or constants(tree)) if call.args else ():
                yield name, keywords(call)


def test_rules_have_a_text_file():
    assert {path.stem for path in texts.FOLDER.glob("*.toml")} == {*RULES, texts.SHARED, STRAGGLER}


@pytest.mark.parametrize("rule", RULES)
def test_a_file_has_title_estimate_and_fix(rule):
    of_rule = texts.of_rule(rule)
    assert not {"{title}", "{estimate}", "{fix}"} & {of_rule.title, of_rule.estimate, of_rule.fix}
    assert "{fix}" not in of_rule.general_fix


@pytest.mark.parametrize("rule", RULES)
def test_all_fields_of_texts_are_supplied_and_used(rule):
    call = call_of(rule)
    known = supplied(rule)
    assert call is None or constants(call.args[0]) in ({rule}, set()), "the name of the function, or a constant"
    used = {}
    for kind, template in templates(rule):
        names = {name.partition(".")[0] for name, _ in fields(template)}
        assert names <= known | {kind}, template
        used |= dict.fromkeys(names)
    in_phrases = {
        name.partition(".")[0] for phrase in texts.of_rule(rule).evidence.values() for name, _ in fields(phrase)
    }
    assert known - COMMON <= used.keys() | in_phrases


@pytest.mark.parametrize("rule", RULES)
def test_all_phrases_are_used_with_their_fields(rule):
    made = list(phrases(rule))
    for name, phrase in texts.of_rule(rule).evidence.items():
        needed = {field.partition(".")[0] for field, _ in fields(phrase)}
        calls_of_name = [given for used, given in made if used == name]
        assert any("*" in given or needed <= given | supplied(rule) for given in calls_of_name), name


def test_used_phrases_exist():
    for module in {inspect.getfile(rule) for rule in RULES.values()}:
        of_module = [name for name, rule in RULES.items() if inspect.getfile(rule) == module]
        known = {phrase for rule in (*of_module, texts.SHARED) for phrase in texts.of_rule(rule).evidence}
        tree = parsed(Path(module))
        assert {name for call in calls([tree], "text") if call.args for name in constants(call.args[0])} <= known


@pytest.mark.slow
def test_shared_texts_are_used():
    sources = [parsed(path) for path in FOLDER.glob("*.py")]
    named = {text for tree in sources for text in constants(tree)}
    shared = texts.of_rule(texts.SHARED)
    assert {*shared.evidence, *shared.versions} <= named


@pytest.mark.parametrize("rule", RULES)
def test_versions_of_a_rule_and_its_file_are_the_same(rule):
    versions, modules = texts.of_rule(rule).versions.keys(), trees(rule)
    assert versions <= {text for tree in modules for text in constants(tree)}
    call = call_of(rule)
    named = {text for argument in call.args[1:] for text in constants(argument)} if call else set()
    assert named - {""} <= versions


@pytest.mark.parametrize("rule", [*RULES, texts.SHARED])
def test_code_is_for_known_frameworks(rule):
    of_rule = texts.of_rule(rule)
    for version in (of_rule, *of_rule.versions.values()):
        if isinstance(version.code, dict):
            assert texts.TORCH in version.code.keys() <= PACKAGES
        assert not version.code_of or texts.of_rule(version.code_of).code, version.code_of


@pytest.mark.parametrize("rule", [*RULES, texts.SHARED, STRAGGLER])
def test_formats_are_valid(rule):
    every = [template for _, template in templates(rule)] + list(texts.of_rule(rule).evidence.values())
    for name, spec in [field for template in every for field in fields(template)]:
        assert texts.Formatter().format_field(2, spec), spec
        assert name.partition(".")[2] in {"", *Device._fields}


@pytest.mark.parametrize("rule", [*RULES, texts.SHARED, STRAGGLER])
def test_sentences_are_short_and_plain(rule):
    of_rule = texts.of_rule(rule)
    prose = [text for kind, text in templates(rule) if kind != "code" and text != f"{{{kind}}}"]
    for text in (*prose, texts.one_line(of_rule.general_fix), *map(texts.one_line, of_rule.evidence.values())):
        assert max(len(sentence.split()) for sentence in re.split(r"[.;] ", text)) <= 30, text
        assert not AVOIDED.search(text), text
    sentences = [text for text in prose if not re.search(r"\{[\w.]+\}$", text)]
    assert [text for text in sentences if not text.endswith(".")] == []


def test_a_version_extends_the_usual_text(monkeypatch, tmp_path):
    monkeypatch.setattr(texts, "FOLDER", tmp_path)
    texts.of_rule.cache_clear()
    (tmp_path / "x.toml").write_text(
        'title = "{time:ms} in {lines:count line}"\nfix = "{{Do}}\\n it."\n[code]\ntorch = "a"\nmmengine = "b"\n'
        '[versions.more]\nfix = "{fix} And {what}."\ncode = "{code}\\nc"\n'
    )
    values = {"time": 2.0, "lines": 1, "what": "{that}"}
    try:
        text = texts.FindingText("x", values, ["", "more"], "mmengine")
        assert (text.title, text.fix, text.code) == ("2 ms in 1 line", "{Do} it. And {that}.", "b\nc")
        assert texts.FindingText("x", values, package="fabric").code == "a"
    finally:
        texts.of_rule.cache_clear()


def test_a_line_has_the_values_of_its_text(monkeypatch, tmp_path):
    """Also if they are in a line that is part of it. The unit is that of the format."""
    monkeypatch.setattr(texts, "FOLDER", tmp_path)
    texts.of_rule.cache_clear()
    (tmp_path / "shared.toml").write_text("")
    (tmp_path / "x.toml").write_text(
        'title = "{first}"\n[evidence]\npart = "{name}: {bytes:size}"\n'
        'all = "{share:share} of {steps:count step} at {rate:.3g GB/s}: {parts}"\n'
    )
    try:
        text = texts.FindingText("x", {"first": texts.EvidenceLine("a", "b", {"c": texts.Value(1, "ms")})})
        parts = [text("part", name=name, bytes=2048) for name in "ab"]
        line = text("all", share=0.5, steps=1, rate=10.0, parts=parts, other=1)
        assert str(line) == "50% of 1 step at 10 GB/s: a: 2 KiB, b: 2 KiB"
        values = {name: (value.value, value.unit) for name, value in line.values.items()}
        assert values.pop("parts") == ("a: 2 KiB, b: 2 KiB", "name")
        assert values == {"share": (0.5, "ratio"), "steps": (1, "number"), "rate": (10.0, "GB/s")}
        assert [part.values["bytes"] for part in line.parts] == [texts.Value(2048, "bytes")] * 2
        assert text.values == {"c": texts.Value(1, "ms")}
    finally:
        texts.of_rule.cache_clear()


def test_a_stored_line_can_be_read_with_any_number():
    line = texts.shared("source", name="x", time_ms=float("inf"))
    assert msgspec.json.decode(msgspec.json.encode(line), type=texts.EvidenceLine).values["time_ms"].value is None
