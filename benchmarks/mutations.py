"""What mutants.py changes: by cosmic-ray's operators, and by some that leave out what somebody wrote on purpose."""

from __future__ import annotations

import ast
import collections
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import parso
from cosmic_ray.ast import ast_nodes, get_ast, is_number
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAVING = {"return", "continue", "raise", "break"}


class _Replaced(Operator):
    """A node for which other code may stand, in one way or several."""

    def _instead(self, node) -> Iterator[str]:
        raise NotImplementedError

    def mutation_positions(self, node):
        return [(node.start_pos, node.end_pos) for _ in self._instead(node)]

    def mutate(self, node, index):
        return parso.parse(node.get_first_leaf().prefix + list(self._instead(node))[index])

    @classmethod
    def examples(cls):
        return ()


class Scaled(_Replaced):
    """A number is ten times what it was, or zero."""

    def _instead(self, node):
        if is_number(node):
            is_none = ast.literal_eval(node.value) == 0
            yield "1" if is_none else "0"
            if not is_none and node.value != "1":
                yield f"(10 * {node.value})"


class GuardDropped(_Replaced):
    """What an ``if`` without an ``else`` sent away goes on."""

    def _instead(self, node):
        if node.type == "if_stmt" and len(node.children) == 4:
            last = [line for line in node.get_code().splitlines() if line.strip()][-1]
            if last.split()[0] in LEAVING or node.children[3].get_first_leaf().value in LEAVING:
                yield "pass\n"


class TermDropped(_Replaced):
    """One of the terms of ``and`` or ``or`` is not asked for."""

    def _instead(self, node):
        if node.type in {"and_test", "or_test"}:
            terms = [term.get_code(include_prefix=False) for term in node.children[::2]]
            for index in range(len(terms)):
                yield f" {node.children[1].value} ".join(terms[:index] + terms[index + 1 :])


class CallDropped(_Replaced):
    """A call whose result nobody takes is not made."""

    def _instead(self, node):
        does = node.children[0] if node.type == "simple_stmt" else node
        if does is not node and does.type in {"atom_expr", "power"} and does.get_last_leaf().value == ")":
            yield "pass\n"


class BodyDropped(_Replaced):
    """A function does nothing."""

    def _instead(self, node):
        if node.type == "suite" and node.parent.type == "funcdef":
            line, *does = node.children
            told = does.pop(0).get_code() if node.parent.get_doc_node() else ""
            if does and does[0].get_code().strip() not in {"...", "pass", "return", "return None", "return False"}:
                yield f"{line.value}{told}{node.children[1].get_first_leaf().prefix}return None\n"


def _core(pattern: str, names: str) -> list[Operator]:
    return [get_operator(f"core/{pattern}{name}")() for name in names.split()]


KINDS: dict[str, list[Operator]] = {
    "comparison": _core(
        "ReplaceComparisonOperator_",
        "Lt_GtE Lt_LtE Gt_LtE Gt_GtE LtE_Gt LtE_Lt GtE_Lt GtE_Gt Eq_NotEq NotEq_Eq Is_IsNot IsNot_Is",
    ),
    "arithmetic": _core("ReplaceBinaryOperator_", "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Mul"),
    "boolean": _core("Replace", "TrueWithFalse FalseWithTrue AndWithOr OrWithAnd"),
    "condition": [*_core("", "AddNot"), TermDropped()],
    "constant": [Scaled()],
    "guard": [GuardDropped()],
    "call": [CallDropped()],
    "body": [BodyDropped()],
}


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str
    line: int
    kind: str
    operator: Operator
    occurrence: int

    def of(self, source: str) -> str | None:
        """The file with the change; None where no Python would read it, or where it changes nothing."""
        changed = mutate_code(source, self.operator, self.occurrence)
        try:
            same = changed is None or ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source))
        except SyntaxError:
            return None
        return None if same else changed


def mutants_of(file: str, source: str) -> list[Mutant]:
    """All of one file."""
    barred = list(_barred(ast.parse(source)))
    seen: collections.Counter[Operator] = collections.Counter()
    found = []
    for node in ast_nodes(get_ast(source)):
        for kind, operators in KINDS.items():
            for operator in operators:
                for begin, _ in operator.mutation_positions(node):
                    # cosmic-ray takes the star of keyword-only parameters for a multiplication
                    star = node.parent is not None and node.parent.type == "parameters"
                    if not star and not any(first <= begin < last for first, last in barred):
                        line = node.children[1].start_pos[0] if kind == "body" else begin[0]
                        found.append(Mutant(file, line, kind, operator, seen[operator]))
                    seen[operator] += 1
    return found


def _barred(tree: ast.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """From where to where nothing is changed: what a type checker reads, how data is kept, and the public names.

    Nor whether ``zip`` checks that it is given as many of each: no test can give what never comes.
    """
    for node in ast.walk(tree):
        barred = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        barred += [name for name in getattr(node, "decorator_list", ()) if "dataclass" in ast.unparse(name)]
        if isinstance(node, ast.ClassDef):
            barred += [keyword.value for keyword in node.keywords]
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
            barred += [keyword.value for keyword in node.keywords]
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            barred.append(node)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in {"__all__", "TYPE_CHECKING"}:
            barred.append(node)
        for part in filter(None, barred):
            yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def shown(before: str, after: str, most: int = 8) -> str:
    """The lines of a change, those that go with a minus before them and those that come with a plus."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
    lines = [line for line in lines if not line.startswith("@@")]
    if len(lines) > most:
        lines[most - 2 : -1] = [f"  ({len(lines) - most + 1} more lines)"]
    return "\n".join(f"    {line}" for line in lines)
