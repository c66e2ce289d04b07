from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks.analysis.findings import texts
from perfhooks.analysis.findings.texts import FindingText

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.run.circumstances import Circumstances

TORCH: Final = ""
LIGHTNING: Final = "Lightning"
MMENGINE: Final = "mmengine"
TRAINER: Final = "the Trainer"
FABRIC: Final = "the program"
ACCELERATE: Final = "accelerate"

PACKAGES: Final = {
    LIGHTNING: "lightning",
    MMENGINE: "mmengine",
    TRAINER: "transformers",
    FABRIC: "fabric",
    ACCELERATE: "accelerate",
}
"""Keys of the frameworks in the ``[code]`` tables of the finding texts."""


def package(framework: str) -> str:
    return PACKAGES.get(framework, texts.TORCH)


def _code(version: str, framework: str, **values: object) -> str:
    return FindingText(texts.SHARED, values, (version,), package(framework)).code


def loader(settings: Mapping[str, object], framework: str = TORCH) -> str:
    """Return the code that constructs a DataLoader from settings with torch's names."""
    arguments = (f"{setting(name, framework)}={'...' if value is ... else value}" for name, value in settings.items())
    return _code("loader", framework, settings=", ".join(arguments))


def setting(name: str, framework: str = TORCH) -> str:
    return _code("setting", framework, name=name)


def option(name: str, value: bool | str, circumstances: Circumstances) -> str:
    if not circumstances.is_launched:
        return f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
    flag = name.replace("_", "-")
    return f'--{flag} "{value}"' if isinstance(value, str) else f"--{flag}" if value else f"--no-{flag}"


def recording(arguments: str, circumstances: Circumstances) -> str:
    if circumstances.is_launched:
        return f"perfhooks run {arguments} ..."
    return _code("recording", circumstances.framework, options=arguments)


def stacks(circumstances: Circumstances) -> str:
    return recording(option("with_stack", True, circumstances), circumstances)
