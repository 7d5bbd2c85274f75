"""What an importer found in the configuration of another scheduler: schedules, and what it could not carry over.

Importers are pure: they read text, run no foreign code and import no other scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tenuto.definitions.definition_files import parse_schedules
from tenuto.definitions.document_parser import parse_document
from tenuto.definitions.document_writer import write_yaml
from tenuto.errors import Invalid

_MAX_NAME_LENGTH = 120


@dataclass(frozen=True, slots=True)
class Omission:
    """Something that was not carried over."""

    line: int | None
    """Line of the source; none if it concerns the whole file."""
    text: str

    def __str__(self) -> str:
        return self.text if self.line is None else f"line {self.line}: {self.text}"


@dataclass(slots=True)
class ImportedDefinitions:
    """The result of an import, which grows while the source is read."""

    source: str
    """Name of the source, for the first line of the definition file."""
    schedules: list[dict[str, Any]] = field(default_factory=list)
    """Schedules as in a definition file."""
    notification_rules: list[dict[str, Any]] = field(default_factory=list)
    """Notification rules as in a definition file."""
    _omissions: list[Omission] = field(default_factory=list)

    @property
    def omissions(self) -> list[Omission]:
        """What was not carried over, in the order of the source; what concerns the whole file comes last."""
        return sorted(self._omissions, key=lambda omission: (omission.line is None, omission.line or 0))

    def add(self, line: int, name: str, fields: Mapping[str, Any]) -> str | None:
        """Add a schedule under a unique name, and return the name.

        A schedule that a definition file may not contain becomes an omission.
        """
        schedule = {"name": self._unique_name(name), **fields}
        try:
            parse_schedules([parse_document("import.yaml", write_yaml({"schedules": [schedule]}).encode())])
        except Invalid as error:
            reason = error.message.partition(f"{error.field}: ")[2] if error.field else ""
            self.omit(line, f"{name!r} is left out: {reason or error.message}")
            return None
        self.schedules.append(schedule)
        return str(schedule["name"])

    def omit(self, line: int | None, text: str) -> None:
        """Report something that is not carried over."""
        self._omissions.append(Omission(line, _one_line(text)))

    def to_yaml(self) -> str:
        """Return a definition file; its comments list the omissions."""
        comments = [f"# Imported from {_one_line(self.source)}."]
        if self.omissions:
            comments += ["#", "# Not carried over:", *(f"# - {omission}" for omission in self.omissions)]
        body = write_yaml({"schedules": self.schedules}) if self.schedules else "schedules: []\n"
        if self.notification_rules:
            body += "\n" + write_yaml({"notification_rules": self.notification_rules})
        return "\n".join([*comments, "", body])

    def _unique_name(self, name: str) -> str:
        name = _one_line(name)[:_MAX_NAME_LENGTH].strip() or "unnamed"
        taken = {schedule["name"] for schedule in self.schedules}
        number = 2
        unique = name
        while unique in taken:
            unique = f"{name} {number}"
            number += 1
        return unique


def _one_line(text: str) -> str:
    """Return a text that is safe in a comment: one line without control characters."""
    return "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))
