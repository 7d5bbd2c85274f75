"""YAML text of plain data, which `document_parser` reads back as the same values."""

from __future__ import annotations

from typing import Any

import yaml

from tenuto.definitions.document_parser import core_resolvers

_MAX_WIDTH = 110
_SEPARATORS = "\r\x85\u2028\u2029"
"""Line separators that a reader would change to a blank or a line feed."""


class _Dumper(yaml.SafeDumper):
    """PyYAML that also quotes texts which YAML 1.2 would read as another type, and indents lists in mappings."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML reads it as a class attribute)
        first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, ()), *core_resolvers().get(first, ())]
        for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *core_resolvers()}
    }

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Write a text with several lines as a block; one with other line separators with escapes."""
    style = None
    if any(character in _SEPARATORS for character in text):
        style = '"'
    elif "\n" in text and not any(line != line.rstrip() for line in text.split("\n")):
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _write_text)


def write_yaml(value: Any) -> str:
    """Return plain data as YAML; the order of mappings is kept."""
    return str(yaml.dump(value, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=_MAX_WIDTH))
