"""Bad inputs on the command line: a command, its exit code, and the code and field of the error.

A refused case changes nothing in the database. The files of a case are written into the working directory first.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tenuto.cli import exit_codes

DOUBLE = '{"n": 1}'
UNKNOWN_ID = "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1"
SQL_INJECTION = "'; DROP TABLE tenuto.tasks;--"


class CliCase(NamedTuple):
    """A command."""

    number: str
    arguments: tuple[str, ...]
    error_code: str = ""
    """Code of the error, or the beginning of it."""
    field: str = ""
    """Beginning of the field name; empty if the error names no field."""
    exit_code: int = exit_codes.USAGE
    stdin: str = ""
    files: dict[str, bytes] = {}  # noqa: RUF012 — never changed
    env: dict[str, str] = {}  # noqa: RUF012


def schedule(number: str, error_code: str, field: str, *options: str) -> CliCase:
    return CliCase(number, ("schedule", "add", "bad", *options), error_code, field)


def step(number: str, kind: str, error_code: str, field: str, **arguments: Any) -> CliCase:
    text = f"{kind}:{json.dumps(arguments)} kind={kind} name=s"
    return schedule(number, error_code, f"--step, s{field}", "--manual", "--step", text)


def http_call(number: str, url: Any, error_code: str = "step.http.url.invalid") -> CliCase:
    return step(number, "http.call", error_code, ".url", url=url)


def program(number: str, error_code: str, field: str, **arguments: Any) -> CliCase:
    return step(number, "executable", error_code, field, **arguments)


def run(number: str, text: str, field: str, error_code: str = "job.input.invalid") -> CliCase:
    return CliCase(number, ("run", "double", "--input", text), error_code, field)


def definition_file(number: str, name: str, content: bytes, error_code: str) -> CliCase:
    return CliCase(number, ("apply", name, "--yes"), error_code, name, files={name: content})


def batch(number: str, name: str, content: bytes, error_code: str, field: str = "", *, atomic: bool = True) -> CliCase:
    arguments = ("batch", "submit", "demand", "--from", name, *(["--atomic"] if atomic else []))
    return CliCase(number, arguments, error_code, field, files={name: content})


def not_found(number: str, *arguments: str) -> CliCase:
    return CliCase(number, arguments, "id.prefix.not_found", exit_code=exit_codes.NOT_FOUND)


def secret(number: str, name: str, value: str, error_code: str, field: str = "value", **env: str) -> CliCase:
    return CliCase(number, ("secret", "set", name), error_code, field, stdin=value, env=env)


def once(number: str, error_code: str, field: str, *options: str) -> CliCase:
    return CliCase(number, ("once", "add", "double", *options, "--payload", DOUBLE), error_code, field)


_STEP = ("--step", 'double:{"n": 1}')
_NESTED_ALIASES = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (each, each, b",".join([b"*%c" % (each - 1)] * 9)) for each in range(98, 110)
)
_MANY_COLUMNS = b",".join([b"c%d" % each for each in range(100_000)]) + b"\n"
_MANY_TAGS = [f"--tag=t{each}" for each in range(1000)]

REFUSED: list[CliCase] = [
    # API keys.
    CliCase("B5", ("key", "add", "late", "--expires", "0001-01-01T00:00:00Z"), "value.date.out_of_range", "--expires"),
    not_found("B13", "task", "show", UNKNOWN_ID),
    not_found("B13", "execution", "cancel", UNKNOWN_ID),
    not_found("B14", "dead-letter", "retry", UNKNOWN_ID, UNKNOWN_ID),
    CliCase("B15", ("key", "add", "root", "--role", "owner"), "cli.usage.invalid", "--role"),
    # Output: refused where it would forge a line.
    CliCase("B28", ("schedule", "add", "a\nSet-Cookie: x", "--manual", *_STEP), "schedule.name.invalid", "NAME"),
    # HTTP calls.
    http_call("B39", "http://0177.0.0.1/"),
    http_call("B40", "http://0xA9FEA9FE/", "step.http.url.host_invalid"),
    http_call("B40", "http://2852039166/", "step.http.url.host_invalid"),
    http_call("B41", "http://a@127.0.0.1/"),
    http_call("B41", "http://127.0.0.1\\@ok.example/"),
    *(http_call("B44", url) for url in ("file:///etc/passwd", "gopher://x/", "ftp://x/", "unix:/x")),
    http_call("B45", "http://[fe80::1%25lo]/", "step.http.url.host_invalid"),
    # Programs.
    program("B49", "value.nul_character", ".arguments", program="echo", args=["a\0b"]),
    program("B51", "step.program.path_invalid", ".program", program="../../bin/sh"),
    *(
        program("B52", "step.program.env.reserved", f".env.{name}", program="echo", env={name: "x"})
        for name in ("LD_PRELOAD", "PYTHONPATH", "BASH_ENV", "PATH")
    ),
    step("B54", "powershell", "step.powershell.script.not_ps1", ".script", script="/x/'; Stop-Computer #"),
    program("B55", "step.program.args.too_many", ".args", program="echo", args=["x"] * 10_000),
    program("B56", "step.program.digest.invalid", ".sha256", program="echo", sha256="abc"),
    # SQL.
    CliCase("B58", ("queue", "pause", SQL_INJECTION), "value.name.invalid", "QUEUE"),
    CliCase("B59", ("schedule", "list", "--limit", "1;DROP"), "cli.usage.invalid", "--limit"),
    CliCase("B59", ("task", "list", "--below", "(SELECT 1)"), "cli.below.invalid", "--below"),
    step("B60", "sql", "step.sql.connection.is_url", ".connection", connection="postgresql://u:p@h", script="x"),
    run("B62", '{"n": "\\u0000"}', "n"),
    CliCase("B62", ("log", "append", "x", "half \ud800 a pair"), "value.lone_surrogate", "MESSAGE"),
    secret("B62", "x", "a\0b", "value.nul_character"),
    CliCase("B62", ("schedule", "add", "\udcff", "--manual", *_STEP), "value.lone_surrogate", "NAME"),
    *(CliCase("B64", ("task", "show", id), "id.not_valid", "id") for id in (" 1", "\uff19", "null", "-")),
    *(not_found("B64", "task", "show", id) for id in ("1e3", str(2**63))),
    # Directories: there is no step kind for them.
    step("B65", "ldap", "step.kind.unknown", "", filter="*)(uid=*))(|(uid=*"),
    step("B70", "ldap", "step.kind.unknown", "", base="a,ou=admins"),
    run("B67", '{"n": ["x"]}', "n"),
    run("B67", '["x"]', "input"),
    secret("B68", "ldap-password", "", "secret.value.too_short"),
    # Files.
    *(
        step("B71", "sql", "step.sql.connection.sqlite_url_invalid", ".connection", connection=url, script="SELECT 1")
        for url in ("sqlite:nonsense", "sqlite://host/x.db", "sqlite:///x.db?mode=rw")
    ),
    run("B71", "@../../../../no/such/file", "--input", "cli.file.not_readable"),
    run("B72", "@.", "--input", "cli.file.not_readable"),
    CliCase("B72", ("apply", "/dev/zero", "--yes"), "definition_file.format.unknown", "FILE"),
    CliCase("B72", ("batch", "submit", "demand", "--from", "/proc/self/mem"), "batch.source.not_readable", "--from"),
    CliCase("B73", ("apply", "x" * 255 + ".yaml", "--yes"), "definition_file.unreadable", "FILE"),
    CliCase("B73", ("apply", "two\nlines.yaml", "--yes"), "definition_file.unreadable", "FILE"),
    batch("B75", "utf16.csv", "n\n1\n".encode("utf-16"), "batch.row.not_utf8"),
    batch("B75", "twice.csv", b"n,n\n1,2\n", "batch.csv.header_invalid"),
    batch("B75", "quote.csv", b'n\n"1\n', "batch.csv.invalid"),
    batch("B75", "more.csv", b"n\n1,2,3\n", "batch.csv.too_many_cells"),
    batch("B75", "wide.csv", _MANY_COLUMNS, "batch.source.empty", "--from"),
    batch("B75", "field.csv", b"n\n" + b"9" * 2_000_000 + b"\n", "job.input.invalid", "n"),
    batch("B75", "half.jsonl", b'{"n": 1}\n{"n": 2', "batch.row.not_json"),
    batch("B76", "gone.csv.not", b"", "batch.source.empty", "--from", atomic=False),
    batch("B77", "bomb.csv.gz", b"\x1f\x8b" + b"\0" * 100, "batch.row.not_utf8", atomic=False),
    # Payloads.
    run("B78", "[" * 100_000, "input"),
    run("B78", '{"n":' * 300 + "1" + "}" * 300, "input"),
    *(run("B79", f'{{"n": {number}}}', "n") for number in ("NaN", "Infinity", "1e999", "1.5")),
    run("B79", f'{{"n": {"9" * 5000}}}', "input"),
    run("B80", '{"n": 1, "n": 2}', "--input", "cli.json"),
    CliCase("B80", ("once", "add", "double", "--in=1h", "--payload", '{"n": 1, "n": 2}'), "cli.json", "--payload"),
    CliCase("B80", ("log", "append", "x", "y", "--fields", '{"n": 1, "n": 2}'), "cli.json", "--fields"),
    schedule("B80", "step.syntax.invalid", "--step", "--manual", "--step", 'double:{"n": 1, "n": 2}'),
    batch("B80", "twice.jsonl", b'{"n": 1, "n": 2}\n', "batch.row.not_json"),
    run("B72", "@/dev/zero", "--input", "cli.text.too_long"),
    CliCase("B72", ("batch", "submit", "demand", "--from", "/dev/zero"), "batch.row.too_long"),
    CliCase("B72", ("batch", "submit", "demand", "--from", "/dev/zero", "--format=csv"), "batch.row.too_long"),
    run("B81", '{"n": 1, "__class__": "os.system"}', "__class__"),
    run("B81", '{"n": {"py/object": "os.system"}}', "n"),
    definition_file("B81", "python.yaml", b"schedules: !!python/object/apply:os.system ['id']\n",
                    "definition_file.yaml.unsupported"),
    definition_file("B81", "aliases.yaml", _NESTED_ALIASES, "definition_file.too_many_values"),
    definition_file("B82", "large.yaml", b"# " + b"x" * 20_000_000, "definition_file.too_large"),
    *(
        CliCase("B83", ("task", "list", "--limit", limit), "cli.usage.invalid", "--limit")
        for limit in ("-1", "0", "1000000000", "x")
    ),
    CliCase("B83", ("log", "show", "x", "--below", str(10**30)), "log.entry_id.invalid", "below"),
    schedule("B83", "trigger.zone.unknown", "--zone", "--cron", "0 0 * * *", "--zone", "../../etc", *_STEP),
    once("B85", "task.tags.too_many", "--tag", "--in", "1h", *_MANY_TAGS),
    CliCase("B85", ("schedule", "add", "x" * 100_000, "--manual", *_STEP), "value.label.invalid", "NAME"),
    CliCase("B85", ("schedule", "add", "self", "--manual", "--step", "self kind=schedule"), "schedule.steps.cycle",
            "--step"),
    schedule("B85", "step.syntax.invalid", "--step", "--manual", "--step", "double:" + DOUBLE + "," * 10),
    CliCase("B85", ("manifest", "add", "m", "--job", "double", "--after", "m"), "manifest.depends_on.cycle", "--after"),
    # Time.
    *(
        schedule("B89", "trigger.cron", "--cron", "--cron", cron, *_STEP)
        for cron in (
            "* * * * * *", "*/0 * * * *", "0-99999999 * * * *", ",".join(["1"] * 10_000) + " * * * *", "@reboot",
            "0 0 30 2 *", "0 0 31 4 *", "0 0 * * Montag", "0 0 L * *", "0 0 1W * *", "0 0 * * 1#2", "", " ",
        )
    ),
    CliCase("B89", ("cron", "explain", "*/0 * * * *"), "trigger.cron.step.out_of_range", "minute"),
    *(
        schedule("B90", "trigger.zone.unknown", "--zone", "--cron", "0 0 * * *", "--zone", zone, *_STEP)
        for zone in ("", "Mars/Base")
    ),
    *(
        once("B91", "one_shot.exec_at", "--at", "--at", instant)
        for instant in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59+14:00", "2031-01-01T00:00:00", "soon", "NaN")
    ),
    once("B91", "one_shot.delay.negative", "--in", "--in=-1s"),
    once("B91", "one_shot.delay.too_long", "--in", "--in=1e99d"),
    *(once("B91", "value.duration.invalid", "--in", f"--in={duration}") for duration in ("NaN", "")),
    schedule("B91", "value.duration.out_of_range", "--every", "--every=-1s", *_STEP),
    # Secrets.
    *(secret("B93", "x", value, "secret.value.too_short") for value in ("abc", "   ")),
    secret("B93", "x", "x" * 70_000, "value.too_large"),
    secret("B93", "${secret:x}", "long enough", "value.name.invalid", "name"),
    http_call("B94", {"secret": {"secret": "x"}}, "job.input.invalid"),
    http_call("B94", {"secret": "x", "of": "another project"}, "job.input.invalid"),
    program("B98", "step.program.args.secret", ".args.0", program="echo", args=[{"secret": "x"}]),
    secret("B96", "x", "long enough", "settings.master_key_file.unreadable", "master_key_file",
           TENUTO_MASTER_KEY_FILE="/no/such/key"),
    secret("B96", "x", "long enough", "settings.master_key.invalid", "master_key", TENUTO_MASTER_KEY="c2hvcnQ="),
]  # fmt: skip

HOSTILE_TEXTS = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</textarea>", "{{7*7}}", "${7*7}", "javascript:x",
    "\u202egnp.exe", "a\u200bb", "\u0430dmin", SQL_INJECTION, "100%_\\", "cafe\u0301", "=cmd|' /c calc'!A1",
    "@SUM(1)", "+1", "\x1b]52;c;aGk=\x07", "\x1b]8;;http://evil\x07x", "*)(uid=*))(|(uid=*", "a,ou=admins", "\\2a",
    "(a+)+$",
)  # fmt: skip
"""B24–B26, B30, B58, B63, B65, B66, B74, B84, B87: stored unchanged, shown without control characters."""
KEPT_NUMBERS = ("B24", "B25", "B26", "B30", "B58", "B63", "B65", "B66", "B74", "B84", "B87")
