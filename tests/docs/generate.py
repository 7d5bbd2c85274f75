"""Writes what can be read off the code: settings, command line, metrics and HTTP API of the reference, and a picture.

`scripts/docs` writes them, a test fails when they are out of date. Nothing here is specific to one setting or command.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from tenuto.cli import exit_codes
from tenuto.cli.command import SHARED
from tenuto.cli.command_tree import root
from tenuto.observability.process_metrics import BOUNDS
from tenuto.observability.prometheus import OF_THE_INSTALLATION, OF_THIS_PROCESS, Metric
from tenuto.observability.status import GATHER_EVERY
from tenuto.settings import Settings, WorkerSettings
from tests.docs.http_reference import http_page
from tests.docs.pictures import rail_picture

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
MADE = "<!-- Made by scripts/docs from {source}: change it there. -->\n"
DEFAULTS = {"home": "`/var/lib/tenuto` as root, else the platform's folder for a user's data"}
"""Where the default depends on the machine."""


# --- settings -------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    return "\n".join(
        [
            "# Settings",
            "",
            MADE.format(source="`src/tenuto/settings.py`"),
            "A value is taken from the first of these that has it:",
            "",
            "1. the argument: `Tenuto(database=…)`, `app.worker(slots=…)`, or an option of the command line",
            "2. the environment: `TENUTO_…`, for workers `TENUTO_WORKER_…`",
            "3. the file `tenuto.toml` in the working folder, or the one named by `TENUTO_CONFIG`",
            "4. the default",
            "",
            "They are read once: the general ones when the app is made, a worker's when it starts. A value that is not",
            "acceptable is refused with the name of its setting. What is empty (`TENUTO_DATABASE=`) is not given.",
            "",
            "## General",
            "",
            *settings_table(Settings, ""),
            "",
            "## Workers",
            "",
            *settings_table(WorkerSettings, "worker."),
            "",
            "`TENUTO_WORKER_QUEUES` is a list with commas: `mail,default`.",
            "",
            "## The file",
            "",
            "```toml",
            "# tenuto.toml",
            'database = "postgresql://tenuto@db.example.org/tenuto"',
            "retention_days = 30",
            "",
            "[worker]",
            'queues = ["mail", "default"]',
            "slots = 20",
            "```",
            "",
            "## Read from the environment only",
            "",
            "| variable | meaning |",
            "|---|---|",
            "| `TENUTO_CONFIG` | The settings file, if it is not `tenuto.toml` in the working folder. |",
            "| `TENUTO_APP` | What `--app` says to the command line, such as `tasks:app`. |",
            "| `TENUTO_DEBUG` | With any value but `0`, the command line shows a traceback instead of an error line. |",
            "| `TENUTO_EMBEDDED_USER` | As root: the account the embedded server runs as. |",
            "",
        ]
    )


def settings_table(kind: type[BaseSettings], key: str) -> Iterator[str]:
    meanings = docstrings(kind)
    prefix = kind.model_config.get("env_prefix", "")
    yield "| variable | in the file | default | allowed | meaning |"
    yield "|---|---|---|---|---|"
    for name, field in kind.model_fields.items():
        default = DEFAULTS.get(name) or f"`{shown(field.default)}`"
        yield f"| `{prefix}{name.upper()}` | `{key}{name}` | {default} | {allowed(field)} | {meanings[name]} |"


def docstrings(kind: type[Any]) -> dict[str, str]:
    """The string below each field of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for above, below in zip(body.body, body.body[1:], strict=False):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name) and is_text:
            assert isinstance(below, ast.Expr)
            assert isinstance(below.value, ast.Constant)
            found[above.target.id] = " ".join(str(below.value.value).split())
    return found


def shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def allowed(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(field.annotation))
    words = {"ge": "{:,g} or more", "gt": "more than {:,g}", "le": "at most {:,g}"}
    bounds = {
        name: value for limit in field.metadata for name in words if (value := getattr(limit, name, None)) is not None
    }
    if bounds.keys() == {"ge", "le"}:
        return f"{bounds['ge']:,g} to {bounds['le']:,g}"
    return ", ".join(words[name].format(value) for name, value in bounds.items())


# --- command line ---------------------------------------------------------------------------------------------------


def commands() -> dict[str, Any]:
    """Every command by what is typed after `tenuto`; the empty name is `tenuto` itself."""
    return dict(below("", typer.main.get_command(root)))


def below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from below(f"{path} {name}".strip(), inner)


def cli_page() -> str:
    known = {path: command for path, command in commands().items() if path}
    shared: dict[str, Any] = {}
    parts = []
    for path, command in known.items():
        parts += ["", *command_section(path, command)]
        shared |= {p.name: p for p in command.params if is_shared(p)}
    return "\n".join(
        [
            "# Command line",
            "",
            MADE.format(source="`src/tenuto/cli`"),
            "Answers go to stdout, talk to stderr. What a command ends with: [exit codes](exit-codes.md).",
            "",
            "| command | |",
            "|---|---|",
            *(f"| [`tenuto {path}`](#tenuto-{path.replace(' ', '-')}) | {summary(known[path])} |" for path in known),
            "",
            "## Shared options",
            "",
            "Most commands take these. What is said on the command line is stronger than the environment and the",
            "[settings file](settings.md).",
            "",
            *options_table([shared[name] for name in SHARED]),
            *parts,
            "",
        ]
    )


def command_section(path: str, command: Any) -> Iterator[str]:
    examples, description = described(command)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    own = [p for p in command.params if p.param_type_name == "option" and not is_shared(p)]
    taken = [p for p in command.params if is_shared(p)]
    yield from (f"## tenuto {path}", "", description, "", "```console", *(f"$ {line}" for line in examples), "```")
    if arguments:
        yield from ("", "| argument | meaning |", "|---|---|")
        yield from (f"| {spelled(p)} | {cell(p.help)}{choices(p)} |" for p in arguments)
    if own:
        yield from ("", *options_table(own))
    if taken:
        yield from ("", "Shared: " + ", ".join(f"`{p.opts[0]}`" for p in taken) + ".")


def described(command: Any) -> tuple[list[str], str]:
    """The examples and the rest of a help text."""
    examples: list[str] = []
    rest: list[str] = []
    for paragraph in (command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            examples += [line.strip() for line in paragraph.splitlines()[1:]]
        elif paragraph != "Examples:":
            rest.append(" ".join(paragraph.split()))
    return examples, "\n\n".join(rest)


def summary(command: Any) -> str:
    return cell(command.short_help or described(command)[1].partition(". ")[0].removesuffix("."))


def options_table(options: list[Any]) -> Iterator[str]:
    yield "| option | meaning |"
    yield "|---|---|"
    for option in options:
        default = option.default
        is_told = default not in (None, False) and "default" not in (option.help or "")
        more = choices(option) + (f" Default: `{default}`." if is_told else "")
        yield f"| {spelled(option)} | {cell(option.help)}{more} |"


def spelled(parameter: Any) -> str:
    value = cell(parameter.metavar or parameter.name.upper())
    if parameter.param_type_name == "argument":
        return f"`{value}`"
    names = ", ".join(f"`{spelling}`" for spelling in parameter.opts)
    return names if parameter.is_flag else f"{names} `{value}`"


def choices(parameter: Any) -> str:
    annotation = parameter.type_descriptor.annotation
    if get_origin(annotation) is not Literal or parameter.metavar:
        return ""
    return " One of " + ", ".join(f"`{choice}`" for choice in get_args(annotation)) + "."


def is_shared(parameter: Any) -> bool:
    return parameter.name in SHARED and parameter.param_type_name == "option"


def cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


# --- exit codes -----------------------------------------------------------------------------------------------------


def exit_code_rows() -> list[str]:
    """The rows of the table that docs/reference/exit-codes.md must have."""
    return [f"| {code} | {meaning} |" for code, meaning in exit_codes.MEANINGS.items()]


# --- metrics --------------------------------------------------------------------------------------------------------


def metrics_page() -> str:
    return "\n".join(
        [
            "# Metrics",
            "",
            MADE.format(source="`src/tenuto/observability/prometheus.py`"),
            "What `GET /metrics` answers, in the text format of Prometheus. How to get at it, and what to act on:",
            "[watching over it](../how-to/observing.md).",
            "",
            "## Of this process",
            "",
            "Counted in memory since the process started: by the worker and the scheduler that run in it.",
            "",
            *metrics_table(OF_THIS_PROCESS),
            "",
            f"The buckets of the histograms end at {', '.join(f'{bound:g}' for bound in BOUNDS)} s.",
            "Every attempt is counted; of those that end in one large batch some are measured, and each stands for",
            "its neighbours.",
            "",
            "## Of the installation",
            "",
            "Asked of the database, so every process tells the same; at most every",
            f"{GATHER_EVERY:g} s, however often it is scraped, and never for more than a hundredth of the time.",
            "",
            *metrics_table(OF_THE_INSTALLATION),
            "",
        ]
    )


def metrics_table(metrics: Sequence[Metric]) -> Iterator[str]:
    yield "| name | kind | labels | meaning |"
    yield "|---|---|---|---|"
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "cli.md": cli_page,
    "metrics.md": metrics_page,
    "http-api.md": lambda: http_page(MADE.format(source="the OpenAPI document of `src/tenuto/api`")),
    "../rail.svg": rail_picture,
}


def main() -> int:
    for name, make in PAGES.items():
        page = FOLDER / name
        before = page.read_text(encoding="utf-8") if page.exists() else None
        text = make()
        page.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{'as it was' if text == before else 'written'}: docs/reference/{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
