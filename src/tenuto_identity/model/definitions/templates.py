"""Templates of example data: which metaverse objects are generated, and how each attribute gets its values.

Generation is a pure function of the template, the seed and the number of an object, so that it can be repeated.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import StrEnum
from typing import Any

from tenuto.errors import Invalid, quoted
from tenuto_identity.model.definitions.definition_reader import Reader, child, error, suggestion
from tenuto_identity.model.definitions.system_definitions import parse_name
from tenuto_identity.model.schema import MetaverseType
from tenuto_identity.model.values import BadValue, DataType, Value, canonical_value, fold_key

_PLACE = re.compile(r"\{(\w+)(\?)?\}")
MAX_COUNT = 10_000_000


class GeneratorKind(StrEnum):
    """How values are generated."""

    SEQUENCE = "sequence"
    """Whole numbers from the one given."""
    CHOICE = "choice"
    """One of the values, each as likely as the others."""
    WEIGHTED = "weighted"
    """One of the values, by weight."""
    PATTERN = "pattern"
    """A text with ``{attribute}``, ``{sequence}``, and ``{n?}``: a number that makes it unique, if needed."""
    DATE = "date"
    """A date between two."""
    TREE = "tree"
    """A reference to an earlier object: a tree without cycles, with so many children at each node."""
    SAMPLE = "sample"
    """References to so many objects of the type referred to that the template generated before."""


@dataclass(frozen=True, slots=True)
class Generator:
    """How one attribute gets its values."""

    kind: GeneratorKind
    start: int = 0
    values: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    pattern: str = ""
    first: date = date.min
    last: date = date.min
    count: int = 0
    population: float = 1.0
    """Share of the objects that get a value."""


@dataclass(frozen=True, slots=True)
class TemplateObjects:
    """Objects of one metaverse type."""

    type: str
    count: int
    attributes: Mapping[str, Generator]


@dataclass(frozen=True, slots=True)
class Template:
    """A template of example data."""

    name: str
    objects: tuple[TemplateObjects, ...]

    def check(self, types: Mapping[str, MetaverseType]) -> None:
        """Check the names that the template mentions; raise `Invalid`."""
        generated: set[str] = set()
        for index, each in enumerate(self.objects):
            path = child("objects", index)
            metaverse_type = types.get(each.type)
            if metaverse_type is None:
                raise error(
                    f"there is no metaverse type {quoted(each.type)}", child(path, "type"), suggestion(each.type, types)
                )
            for name, generator in each.attributes.items():
                place = child(child(path, "attributes"), name)
                attribute = metaverse_type.attributes.get(name)
                if attribute is None:
                    raise error(
                        f"the metaverse type {each.type} has no attribute {quoted(name)}",
                        place,
                        suggestion(name, metaverse_type.attributes),
                    )
                is_reference = generator.kind in (GeneratorKind.TREE, GeneratorKind.SAMPLE)
                if is_reference != attribute.is_reference:
                    raise error(f"{generator.kind.value} does not fit the {attribute.type.value} {name}", place)
                if generator.kind is GeneratorKind.SAMPLE and attribute.to not in generated:
                    raise error(f"no {attribute.to} is generated before the {each.type}", place, "change the order")
            generated.add(each.type)


def parse_template(value: object) -> Template:
    """Return a template; raise `Invalid` whose field is the path of the value at fault."""
    reader = Reader(value, "a template", known=("name", "objects", "description"))
    name = parse_name(reader.text("name"), "name", "a template")
    objects = tuple(_parse_objects(each, child("objects", index)) for index, each in enumerate(reader.items("objects")))
    if not objects:
        raise Invalid(f"the template {name} has no objects", code="identity.definition.field_missing", field="objects")
    return Template(name, objects)


def _parse_objects(value: object, path: str) -> TemplateObjects:
    reader = Reader(value, "objects", path, known=("type", "count", "attributes"))
    fields = Reader(reader.required("attributes"), "attributes", reader.at("attributes"))
    return TemplateObjects(
        reader.text("type"),
        reader.integer("count", 1, 1, MAX_COUNT),
        {name: _parse_generator(fields.raw(name), fields.at(name)) for name in fields.names()},
    )


def _parse_generator(value: object, path: str) -> Generator:
    kinds = [each.value for each in GeneratorKind]
    reader = Reader(value, "a generator", path, known=(*kinds, "population"))
    given = [GeneratorKind(name) for name in kinds if name in reader]
    if len(given) != 1:
        raise error("a generator has exactly one of its kinds", path, f"write one of: {', '.join(kinds)}")
    kind = given[0]
    share = reader.raw("population")
    population = 1.0
    if share is not None:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", str(share))
        if found is None or float(found[1]) > 100:
            raise error(f"population {quoted(share)} is not a percentage", reader.at("population"), "write 40%")
        population = float(found[1]) / 100
    match kind:
        case GeneratorKind.SEQUENCE:
            return Generator(kind, start=reader.integer("sequence", 1, 0, 2**62), population=population)
        case GeneratorKind.CHOICE:
            values = tuple(str(each) for each in reader.items("choice"))
            return Generator(kind, values=_not_empty(values, reader.at("choice")), population=population)
        case GeneratorKind.WEIGHTED:
            weights = Reader(reader.raw("weighted"), "weighted", reader.at("weighted"))
            names = _not_empty(tuple(weights.names()), reader.at("weighted"))
            numbers = tuple(float(weights.integer(name, 1, 0, 1_000_000)) for name in names)
            return Generator(kind, values=names, weights=numbers, population=population)
        case GeneratorKind.PATTERN:
            return Generator(kind, pattern=reader.text("pattern"), population=population)
        case GeneratorKind.DATE:
            first, last = _parse_dates(reader.items("date"), reader.at("date"))
            return Generator(kind, first=first, last=last, population=population)
        case GeneratorKind.TREE | GeneratorKind.SAMPLE:
            return Generator(kind, count=reader.integer(kind.value, 1, 1, 10_000), population=population)


def _not_empty(values: tuple[str, ...], path: str) -> tuple[str, ...]:
    if not values:
        raise error("there are no values to choose from", path)
    return values


def _parse_dates(values: Sequence[Any], path: str) -> tuple[date, date]:
    try:
        first, last = (date.fromisoformat(str(each)) for each in values)
    except ValueError:
        raise error(f"{quoted(values, 60)} are not two dates", path, "write [2015-01-01, 2026-01-01]") from None
    if last < first:
        raise error(f"{last} is before {first}", path)
    return first, last


# --- generation -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class GeneratedObject:
    """The values of one generated object. References are numbers of objects generated before."""

    attributes: dict[str, list[Value]] = field(default_factory=dict)
    references: dict[str, list[int]] = field(default_factory=dict)


class ObjectGenerator:
    """Generates the objects of one part of a template in order. It remembers the texts that must be unique."""

    def __init__(self, part: TemplateObjects, metaverse_type: MetaverseType, seed: str) -> None:
        self._part = part
        self._type = metaverse_type
        self._seed = seed
        self._taken: dict[str, set[str]] = {}

    def generate_many(self, numbers: Iterable[int], earlier_counts: Mapping[str, int]) -> list[GeneratedObject]:
        """Return the objects with these numbers, in order."""
        return [self.generate(number, earlier_counts) for number in numbers]

    def generate(self, number: int, earlier_counts: Mapping[str, int]) -> GeneratedObject:
        """Return the object with this number, from 0. ``earlier_counts`` are the objects of other types so far."""
        source = random.Random(f"{self._seed}:{self._part.type}:{number}")
        found = GeneratedObject()
        later: list[tuple[str, Generator]] = []
        for name, generator in self._part.attributes.items():
            if generator.population < 1 and source.random() >= generator.population:
                continue
            if generator.kind is GeneratorKind.PATTERN:
                later.append((name, generator))
            else:
                self._set(found, name, generator, number, source, earlier_counts)
        for name, generator in later:  # patterns use the other attributes
            text = self._fill(name, generator.pattern, found, number)
            found.attributes[name] = [canonical_value(text, self._type.attributes[name].type)]
        return found

    def _set(
        self,
        found: GeneratedObject,
        name: str,
        generator: Generator,
        number: int,
        source: random.Random,
        earlier_counts: Mapping[str, int],
    ) -> None:
        attribute = self._type.attributes[name]
        match generator.kind:
            case GeneratorKind.TREE:
                if number > 0:
                    found.references[name] = [(number - 1) // generator.count]
            case GeneratorKind.SAMPLE:
                total = earlier_counts.get(attribute.to or "", 0)
                count = min(generator.count if attribute.multi else 1, total)
                found.references[name] = sorted(source.sample(range(total), count))
            case _:
                found.attributes[name] = [
                    canonical_value(self._value(generator, number, source, attribute.type), attribute.type)
                ]

    def _value(self, generator: Generator, number: int, source: random.Random, data_type: DataType) -> Any:
        match generator.kind:
            case GeneratorKind.SEQUENCE:
                value = generator.start + number
                return value if data_type is DataType.INTEGER else str(value)
            case GeneratorKind.CHOICE:
                return source.choice(generator.values)
            case GeneratorKind.WEIGHTED:
                return source.choices(generator.values, generator.weights)[0]
            case GeneratorKind.DATE:
                days = (generator.last - generator.first).days
                return (generator.first + timedelta(days=source.randint(0, days))).isoformat()
            case _:
                raise BadValue(f"generator {generator.kind.value} cannot generate a value for this property")

    def _fill(self, name: str, pattern: str, found: GeneratedObject, number: int) -> str:
        """Return the text of a pattern. With ``{n?}`` it is unique among the objects of the template."""

        def replace(match: re.Match[str]) -> str:
            if match[2]:
                return match[0]
            if match[1] == "sequence":
                return str(number + 1)
            values = found.attributes.get(match[1])
            return str(values[0]).lower() if values else ""

        text = _PLACE.sub(replace, pattern)
        optional = _PLACE.search(text)
        if optional is None:
            return text
        taken = self._taken.setdefault(name, set())
        count = 1
        while True:
            candidate = text.replace(optional[0], "" if count == 1 else str(count))
            if fold_key(candidate) not in taken:
                taken.add(fold_key(candidate))
                return candidate
            count += 1
