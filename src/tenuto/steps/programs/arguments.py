"""What may be said about a program in a definition, and is refused before it is stored.

Shapes only: whether a program is there, and may be run, is for the worker to see that is to run it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from tenuto.errors import Invalid
from tenuto.model.secrets import SecretRef, Text

MAX_ARGUMENTS = 4096
MAX_ARGUMENT = 128 * 1024 - 1
"""In bytes: what Linux takes as one argument or variable."""
MAX_VARIABLES = 256
MAX_KEPT = 200_000

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_STEERING = re.compile(
    # What changes which code a program runs: the loader, interpreters, shells, and what Tenuto itself says.
    r"LD_.*|DYLD_.*|PYTHON.*|PERL.*|RUBY.*|NODE_.*|BASH_.*|DOTNET_.*|COMPLUS_.*|CORECLR_.*|GIT_.*|TENUTO_.*"
    r"|PATH|PATHEXT|ENV|IFS|SHELL|SHELLOPTS|BASHOPTS|PS4|PROMPT_COMMAND|CDPATH|GLOBIGNORE|PSMODULEPATH|GCONV_PATH"
    r"|LOCPATH|NLSPATH|HOSTALIASES|RESOLV_.*|RES_OPTIONS|CLASSPATH|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|JDK_JAVA_OPTIONS"
    r"|GLIBC_TUNABLES|MALLOC_.*|OPENSSL_CONF|OPENSSL_MODULES|SSLKEYLOGFILE|COMSPEC|R_HOME|LUA_.*|TCLLIBPATH",
    re.IGNORECASE,
)


def _refuse_nul(text: str, field: str, *, limit: int = MAX_ARGUMENT) -> str:
    if "\0" in text:
        raise Invalid("contains a NUL character, which no program can be given", field=field, remedy="remove it")
    if len(text.encode("utf-8", "surrogatepass")) > limit:
        raise Invalid(f"is larger than {limit:,} bytes", field=field, remedy="pass it by stdin, or in a file")
    return text


def _program(text: str) -> str:
    _refuse_nul(text, "program", limit=4096)
    if not text or text in (".", "..") or ("/" in text and not text.startswith("/")) or "\\" in text:
        raise Invalid(
            f"{text!r:.80} is neither an absolute path nor a plain name",
            field="program",
            remedy="write /the/whole/path, or just the name of a program in TENUTO_PROGRAM_PATH",
        )
    return text


def _quoted(value: Any) -> Any:
    """A number in a file is not the text somebody meant: 010 and 1e3 would arrive as something else."""
    if isinstance(value, bool | int | float):
        raise Invalid(f"{value!r} is not a text", field="args", remedy="put it in quotes")
    return value


def _args(values: list[Text]) -> list[Text]:
    if len(values) > MAX_ARGUMENTS:
        raise Invalid(
            f"are {len(values):,}", field="args", remedy=f"give at most {MAX_ARGUMENTS:,}, or a file or stdin instead"
        )
    for number, value in enumerate(values):
        if isinstance(value, SecretRef):
            raise Invalid(
                "is a secret, and everybody on the machine can read the arguments of a program",
                field=f"args.{number}",
                remedy="pass it by env or stdin",
            )
        _refuse_nul(value, f"args.{number}")
    return values


def _env(values: dict[str, Text]) -> dict[str, Text]:
    if len(values) > MAX_VARIABLES:
        raise Invalid(f"has {len(values):,} variables", field="env", remedy=f"give at most {MAX_VARIABLES}")
    for name, value in values.items():
        if not _VARIABLE.fullmatch(name):
            raise Invalid(
                f"{name!r:.80} is not the name of a variable", field="env", remedy="use letters, digits and _"
            )
        if _STEERING.fullmatch(name):
            remedy = "set TENUTO_PROGRAM_PATH for the worker" if name.upper() == "PATH" else "leave it out"
            raise Invalid("decides which code is run, or is Tenuto's own", field=f"env.{name}", remedy=remedy)
        if isinstance(value, str):
            _refuse_nul(value, f"env.{name}")
    return values


def _folder(text: str | None) -> str | None:
    if text is not None:
        absolute(text, "folder")
    return text


def absolute(text: str, field: str) -> str:
    """A whole path."""
    _refuse_nul(text, field, limit=4096)
    if not text.startswith("/"):
        raise Invalid(f"{text!r:.80} is not an absolute path", field=field, remedy="write /the/whole/path")
    return text


def _warnings(codes: list[int], info: ValidationInfo) -> list[int]:
    before: Mapping[str, Any] = info.data or {}
    both = sorted(set(codes) & set(before.get("field_success_codes") or ()))
    if both:
        raise Invalid(f"{both[0]} is a success code too", field="warning_codes", remedy="name it in one of them")
    return codes


def _digest(text: str | None) -> str | None:
    if text is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise Invalid("is not a SHA-256 digest", field="sha256", remedy="give what `sha256sum FILE` says: 64 digits")
    return text and text.lower()


Program = Annotated[str, AfterValidator(_program)]
Arguments = Annotated[list[Annotated[Text, BeforeValidator(_quoted)]], AfterValidator(_args)]
Environment = Annotated[dict[str, Text], AfterValidator(_env)]
Folder = Annotated[str | None, AfterValidator(_folder)]
Codes = Annotated[list[Annotated[int, Field(ge=0, le=255)]], Field(max_length=256)]
SuccessCodes = Annotated[Codes, Field(min_length=1)]
WarningCodes = Annotated[Codes, AfterValidator(_warnings)]
Kept = Annotated[int, Field(ge=0, le=MAX_KEPT)]
Grace = Annotated[float, Field(ge=0, le=300)]
Digest = Annotated[str | None, AfterValidator(_digest)]
