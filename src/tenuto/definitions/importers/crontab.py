"""Schedules from a crontab: each entry becomes a schedule whose step runs the command with the shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from tenuto.definitions.importers.imported_definitions import ImportedDefinitions
from tenuto.model.filters import MAX_ALTERNATIVES, MAX_FILTER_LENGTH

_ASSIGNMENT = re.compile(r"\s*(?P<quote>[\"']?)(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P=quote)\s*=\s*(?P<value>.*?)\s*")
_FORMER_ENTRY = re.compile(r"@\w|-?[\d*][\d*/,-]*\s+[\d*][\d*/,-]*\s")
"""A comment that was an entry once, and so describes none."""
_PERCENT = re.compile(r"(?<!\\)%")
_SEPARATOR = re.compile(r"&&|\|\||[;|&]")
_PREPARATIONS = frozenset({"cd", "test", "[", "[[", "export", "umask", "sleep", "set", ".", "source", "true", "("})
"""Commands that usually only prepare the one that gives the entry its name."""
_ZONE_VARIABLE = "CRON_TZ"
_ADDRESS = re.compile(r"[^\s@<>,;:\"\\]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_MAX_FILTER_CHARACTERS = MAX_FILTER_LENGTH - len("schedule:")
_MAX_RECIPIENTS = 50
"""As ``MAX_RECIPIENTS`` of notification rules, which this package does not import."""
_MAX_RULE_NAME_CHARACTERS = 100
_DEFAULT_SHELL = "/bin/sh"
_EXPORTING_SHELLS = frozenset({"sh", "ash", "bash", "dash", "ksh", "mksh", "pdksh", "yash", "zsh"})
"""Shells that read `export NAME=value`."""
_MISFIRE_POLICY = "skip"
"""cron makes up for the runs of a few minutes, which is the default grace time, and skips older ones."""


@dataclass(slots=True)
class _CrontabReader:
    result: ImportedDefinitions
    zone: str
    has_user_field: bool
    variables: dict[str, str] = field(default_factory=dict)
    comment: str = ""
    uses_default_zone: bool = False
    uses_default_folder: bool = False
    recipients: tuple[str, ...] = ()
    mailed: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    """Names of schedules by the recipients of their messages."""

    def read_line(self, number: int, text: str) -> None:
        stripped = text.strip()
        if stripped.startswith("#"):
            comment = stripped.lstrip("# ").strip()
            self.comment = "" if _FORMER_ENTRY.match(comment) or comment.startswith("m h") else comment
        elif not stripped:
            self.comment = ""
        elif assignment := _ASSIGNMENT.fullmatch(text):
            self._assign(number, assignment["name"], assignment["value"])
            self.comment = ""
        else:
            self._read_entry(number, stripped)
            self.comment = ""

    def _assign(self, number: int, name: str, value: str) -> None:
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        if name == "MAILTO":
            self._set_recipients(number, value)
        elif name == "MAILFROM":
            pass  # the setting notifications.smtp_from
        elif name in ("RANDOM_DELAY", "CRON_WITHIN", "START_HOURS_RANGE"):
            self.result.omit(number, f"{name}={value} has no equivalent; see the field jitter")
        elif name in ("LOGNAME", "USER"):
            self.result.omit(number, f"{name}={value}: the command runs as the user of the worker")
        else:
            self.variables[name] = value

    def _set_recipients(self, number: int, value: str) -> None:
        """Take the recipients of the entries below; names of users of the machine are no addresses."""
        given = tuple(dict.fromkeys(each for part in value.split(",") if (each := part.strip())))
        self.recipients = tuple(each for each in given if _ADDRESS.fullmatch(each))
        if local := [each for each in given if each not in self.recipients]:
            self.result.omit(number, f"MAILTO={','.join(local)}: no address; output is in the log of each attempt")
        if self.recipients:
            text = "a failed run leads to a mail; cron mails all output, which is in the log of each attempt"
            self.result.omit(number, f"MAILTO={','.join(self.recipients)}: {text}")

    def add_rules(self) -> None:
        """Add notification rules for the schedules of the same recipients; long lists need several."""
        taken: set[str] = set()
        for recipients, names in self.mailed.items():
            parts_of_names = list(_divide([_quote(name) for name in names]))
            for to in (recipients[at : at + _MAX_RECIPIENTS] for at in range(0, len(recipients), _MAX_RECIPIENTS)):
                for names_of_rule in parts_of_names:
                    name = _unique_rule_name(to, taken)
                    taken.add(name)
                    self.result.notification_rules.append(
                        {
                            "name": name,
                            "event": "execution.failed",
                            "filter": f"schedule:{','.join(names_of_rule)}",
                            "channel": {"kind": "email", "to": list(to)},
                            "group": {"window": 0},
                        }
                    )

    def _read_entry(self, number: int, text: str) -> None:
        text = text.removeprefix("-").strip()  # cronie: do not log this entry
        parts = text.split(None, 1 if text.startswith("@") else 5)
        if len(parts) < (2 if text.startswith("@") else 6):
            self.result.omit(number, f"{text!r} is not an entry: fields or the command are missing")
            return
        line, command = " ".join(parts[:-1]), parts[-1]
        if self.has_user_field:
            user, *rest = command.split(None, 1)
            if not rest:
                self.result.omit(number, f"{text!r} has no command after the user")
                return
            command = rest[0]
            self.result.omit(number, f"user {user}: the command runs as the user of the worker")
        if line == "@reboot":
            self.result.omit(number, f"@reboot {command}: there is no such trigger; use a unit of systemd")
            return
        if "~" in line:
            self.result.omit(number, f"{line} {command}: random ranges have no equivalent; see the field jitter")
            return
        self._add(number, line, command)

    def _add(self, number: int, line: str, command: str) -> None:
        script, *lines_of_stdin = (part.replace("\\%", "%") for part in _PERCENT.split(command))
        name = _name_of(script)
        shell = self.variables.get("SHELL") or _DEFAULT_SHELL
        exported = {key: value for key, value in self.variables.items() if key != _ZONE_VARIABLE}
        if PurePosixPath(shell).name not in _EXPORTING_SHELLS:
            exported.pop("SHELL", None)
            if exported:
                reason = f"{shell} does not read the `export` that sets {', '.join(exported)}"
                self.result.omit(number, f"{name!r} is left out: {reason}; see the argument env")
                return
        exports = [f"export {key}={shlex.quote(value)}" for key, value in exported.items()]
        arguments: dict[str, object] = {
            "program": shell,
            "args": ["-c", "\n".join([*exports, script.strip()])],
        }
        if lines_of_stdin:
            arguments["stdin"] = "".join(f"{each}\n" for each in lines_of_stdin)
        if home := self.variables.get("HOME"):
            arguments["folder"] = home
        else:
            self.uses_default_folder = True
        fields: dict[str, object] = {"description": self.comment} if self.comment else {}
        zone = self.variables.get(_ZONE_VARIABLE)
        self.uses_default_zone |= not zone
        fields |= {"cron": line, "zone": zone or self.zone, "misfire": _MISFIRE_POLICY}
        steps = [{"kind": "executable", "name": name, "arguments": arguments}]
        added = self.result.add(number, name, {**fields, "steps": steps})
        if added is not None and self.recipients:
            self.mailed.setdefault(self.recipients, []).append(added)


def import_crontab(
    text: str, *, source: str, zone: str | None = None, has_user_field: bool = False
) -> ImportedDefinitions:
    """Convert a crontab of a user, or of the system (with a user in each entry)."""
    result = ImportedDefinitions(source)
    reader = _CrontabReader(result, zone or "UTC", has_user_field)
    for number, line in enumerate(text.splitlines(), start=1):
        reader.read_line(number, line)
    reader.add_rules()
    if result.notification_rules:
        result.omit(None, "mails need the mail server of the workers; see `TENUTO_NOTIFICATIONS_SMTP_HOST`")
    if result.schedules:
        if zone is None and reader.uses_default_zone:
            result.omit(None, "cron uses the time zone of its machine, these schedules use UTC; see the option --zone")
        if reader.uses_default_folder:
            result.omit(
                None, "cron starts commands in the home folder of the user, steps in an empty folder; see `folder`"
            )
        result.omit(None, "cron starts a command while its last run is active, a schedule does not; see `overlap`")
    return result


def _quote(name: str) -> str:
    """Return the name of a schedule as a value of a filter."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _unique_rule_name(recipients: Sequence[str], taken: Container[str]) -> str:
    """Return a name for a rule; lists with a long prefix in common are numbered."""
    name = unique = f"mail to {', '.join(recipients)}"[:_MAX_RULE_NAME_CHARACTERS].strip(", ")
    number = 1
    while unique in taken:
        number += 1
        unique = f"{name} {number}"
    return unique


def _divide(names: Sequence[str]) -> Iterator[list[str]]:
    """Divide names into lists that each fit into a filter."""
    part: list[str] = []
    for name in names:
        is_full = len(part) == MAX_ALTERNATIVES
        if is_full or (part and sum(len(each) + 1 for each in [*part, name]) > _MAX_FILTER_CHARACTERS):
            yield part
            part = []
        part.append(name)
    yield part


def _name_of(script: str) -> str:
    """Return a name for an entry: the first program that does more than prepare."""
    for command in _SEPARATOR.split(script):
        try:
            words = shlex.split(command)
        except ValueError:  # a quote that spans commands
            words = command.split()
        words = [word for word in words if not re.match(r"\w+=", word)]
        if words and words[0] not in _PREPARATIONS:
            return PurePosixPath(words[0]).name or words[0]
    return script.strip()
