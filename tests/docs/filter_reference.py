"""Generates the reference of the filter grammar: its forms, and the keys of each list."""

from __future__ import annotations

from collections.abc import Iterator

from tenuto.model.filter_keys import (
    ACTIVITY_KEYS,
    AUDIT_KEYS,
    BATCH_KEYS,
    DEAD_LETTER_KEYS,
    EXECUTION_KEYS,
    LEDGER_KEYS,
    LOG_ENTRY_KEYS,
    ONE_SHOT_KEYS,
    SCHEDULE_KEYS,
    TASK_KEYS,
)
from tenuto.model.filters import DEFAULT_WINDOW, MAX_FILTER_LENGTH, FilterKey, FilterSchema, KeyType

SCHEMAS = (
    EXECUTION_KEYS,
    TASK_KEYS,
    ACTIVITY_KEYS,
    DEAD_LETTER_KEYS,
    ONE_SHOT_KEYS,
    BATCH_KEYS,
    AUDIT_KEYS,
    SCHEDULE_KEYS,
    LEDGER_KEYS,
    LOG_ENTRY_KEYS,
)
FORMS = {
    KeyType.TEXT: "text",
    KeyType.TAGS: "text",
    KeyType.ID: "id or its first characters",
    KeyType.NUMBER: "number",
    KeyType.DURATION: "duration",
    KeyType.INSTANT: "time",
    KeyType.FLAG: "`yes` or `no`",
}


def filters_page(header: str) -> str:
    return "\n".join(
        [
            "# Filters",
            "",
            header,
            "Lists of the HTTP API (`q=`), the command line (`--where`) and Python (`where`) take one filter grammar:",
            "",
            "```text",
            'state:failed,cancelled schedule:"Nightly HR Sync" started:>2h -by:ana error:~timeout refused',
            "```",
            "",
            "| form | meaning |",
            "|---|---|",
            "| `key:value` | the key has this value |",
            "| `key:a,b` | one of the values |",
            "| `key:~part` | the text contains the part, in upper or lower case |",
            "| `-key:value` | not; records without a value included |",
            "| `word` | the texts of the record contain the word |",
            '| `key:"a b"` | a value with blanks, commas or quotation marks; `\\"` and `\\\\` inside |',
            "| `attempts:>=3`, `attempts:2..5` | a number or a range: `>`, `>=`, `<`, `<=`, `a..b`, `a..`, `..b` |",
            "| `ran:>30s`, `ran:<1h30m` | a duration: `ms`, `s`, `m`, `h`, `d`, `w` |",
            "| `ended:>2h` | a time later than two hours ago, that is within the last two hours |",
            "| `ended:<7d` | a time more than seven days ago |",
            "| `ended:2031-05-04`, `ended:today`, `ended:yesterday` | a time on this day |",
            "| `ended:2031-05-01..2031-05-04` | a time on these days, the last one included |",
            "| `ended:>=2031-05-04T12:00:00Z` | a time from this instant on |",
            "",
            "Clauses are separated by blanks, and all of them must be met. Dates and times without an offset are in",
            "UTC; on the command line they are in the time zone of the machine. An unknown key or value is an error",
            f"that names its position and the nearest known one. A filter has at most {MAX_FILTER_LENGTH} characters.",
            "",
            "Keys marked *window*, `~` and words have no index. They search the newest",
            f"{DEFAULT_WINDOW:,} records, counted among those that meet the other clauses. The HTTP API says so",
            "in `searched`, the command line in a message; `window=` and `--window` search more.",
            "",
            "`GET …/count?q=…` and `--count` return the number of matching records, exact up to 10,000.",
            "",
            *(line for schema in SCHEMAS for line in schema_section(schema)),
        ]
    )


def schema_section(schema: FilterSchema) -> Iterator[str]:
    yield f"## {schema.noun[0].upper()}{schema.noun[1:]}"
    yield ""
    yield f"`--since` and `--until` refer to `{schema.time_key}`. Words are searched in: {schema.text_help}."
    yield ""
    yield "| key | values | meaning |"
    yield "|---|---|---|"
    for key in schema.keys:
        window = " (window)" if schema.has_window and key.is_windowed else ""
        yield f"| `{key.name}` | {describe_values(key)} | {key.help}{window} |"
    yield ""


def describe_values(key: FilterKey) -> str:
    return ", ".join(f"`{choice}`" for choice in key.choices) or FORMS[key.type]
