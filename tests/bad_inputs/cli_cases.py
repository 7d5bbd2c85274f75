"""Bad inputs at the prompt: a command, how it ends, and what it says: the field, and what to do instead.

A case that is refused changes nothing in the database. One that is kept is shown as the text it is; what it shows must
be safe for a terminal. Files are written into the working folder first.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tenuto.cli import exit_codes

DOUBLE = '{"n": 1}'
UNKNOWN = "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1"
WORSE = "'; DROP TABLE tenuto.tasks;--"


class CliCase(NamedTuple):
    """One command."""

    number: str
    arguments: tuple[str, ...]
    expected_texts: tuple[str, ...] = ()
    """What must stand in what it says (of an error: the field and the remedy among it)."""
    code: int = exit_codes.USAGE
    stdin: str = ""
    files: dict[str, bytes] = {}  # noqa: RUF012 — never changed
    env: dict[str, str] = {}  # noqa: RUF012


def step(kind: str, **arguments: Any) -> str:
    return f"{kind}:{json.dumps(arguments)} kind={kind} name=s"


def schedule(number: str, *options: str, says: tuple[str, ...]) -> CliCase:
    return CliCase(number, ("schedule", "add", "bad", *options), says)


def of_step(number: str, kind: str, says: tuple[str, ...], **arguments: Any) -> CliCase:
    return schedule(number, "--manual", "--step", step(kind, **arguments), says=says)


def run(number: str, given: str, *says: str) -> CliCase:
    return CliCase(number, ("run", "double", "--input", given), says)


def called(number: str, url: str, *says: str) -> CliCase:
    return of_step(number, "http.call", ("--step, s.url", *says), url=url)


def program(number: str, *says: str, **arguments: Any) -> CliCase:
    return of_step(number, "executable", says, **arguments)


def file(number: str, name: str, content: bytes, *says: str) -> CliCase:
    return CliCase(number, ("apply", name, "--yes"), says, files={name: content})


def rows(number: str, name: str, content: bytes, *says: str, atomic: bool = False) -> CliCase:
    words = ("batch", "submit", "demand", "--from", name, *(["--atomic"] if atomic else []))
    return CliCase(number, words, says, files={name: content})


_STEP = ("--step", 'double:{"n": 1}')
_PRINTED_ONCE = "key add"

REFUSED: list[CliCase] = [
    # Who asks: what a key may be, and for how long.
    CliCase("B5", ("key", "add", "late", "--expires", "0001-01-01T00:00:00Z"), ("expires", "try:")),
    CliCase("B13", ("task", "show", UNKNOWN), ("no id begins with", "tenuto task list"), exit_codes.NOT_FOUND),
    CliCase("B13", ("execution", "cancel", UNKNOWN), ("no execution's id", "execution list"), exit_codes.NOT_FOUND),
    CliCase("B14", ("dead-letter", "retry", UNKNOWN, UNKNOWN), ("no dead letter's id", "try:"), exit_codes.NOT_FOUND),
    CliCase("B15", ("key", "add", "root", "--role", "owner"), ("'owner'", "viewer")),
    # What is shown: refused where it would forge a line.
    CliCase("B28", ("schedule", "add", "a\nSet-Cookie: x", "--manual", *_STEP), ("NAME", "try:")),
    # Where a call leads.
    called("B39", "http://0177.0.0.1/", "url"),
    called("B40", "http://0xA9FEA9FE/", "url"),
    called("B40", "http://2852039166/", "url"),
    called("B41", "http://a@127.0.0.1/", "holds a user name", "put credentials into a header"),
    called("B41", "http://127.0.0.1\\@ok.example/", "backslash"),
    *(
        called("B44", url, "only http and https")
        for url in ("file:///etc/passwd", "gopher://x/", "ftp://x/", "unix:/x")
    ),
    called("B45", "http://[fe80::1%25lo]/", "url"),
    # Programs.
    program("B49", "--step, s.arguments", "NUL", "remove it", program="echo", args=["a\0b"]),
    program("B51", "--step, s.program", "write /the/whole/path", program="../../bin/sh"),
    *(
        program("B52", f"--step, s.env.{name}", "leave it out", program="echo", env={name: "x"})
        for name in ("LD_PRELOAD", "PYTHONPATH", "BASH_ENV")
    ),
    program("B52", "--step, s.env.PATH", "TENUTO_PROGRAM_PATH", program="echo", env={"PATH": "/x"}),
    of_step("B54", "powershell", ("--step, s.script", "ends with .ps1"), script="/x/'; Stop-Computer #"),
    program("B55", "--step, s.args", "at most 4,096", program="echo", args=["x"] * 10_000),
    program("B56", "--step, s.sha256", "sha256sum", program="echo", sha256="abc"),
    # SQL.
    CliCase("B58", ("queue", "pause", WORSE), ("QUEUE", "try:")),
    CliCase("B59", ("schedule", "list", "--limit", "1;DROP"), ("--limit",)),
    CliCase("B59", ("task", "list", "--below", "(SELECT 1)"), ("id",)),
    of_step("B60", "sql", ("--step, s.connection", "[connections.NAME]"), connection="postgresql://u:p@h", script="x"),
    CliCase("B62", ("run", "double", "--input", '{"n": "\\u0000"}'), ("input",)),
    CliCase("B62", ("log", "append", "x", "half \ud800 a pair"), ("MESSAGE",)),
    CliCase("B62", ("secret", "set", "x"), ("value",), stdin="a\0b"),
    CliCase("B62", ("schedule", "add", "\udcff", "--manual", *_STEP), ("NAME",)),
    *(CliCase("B64", ("task", "show", id), ("id",)) for id in (" 1", "\uff19", "null", "-")),
    *(CliCase("B64", ("task", "show", id), ("no id begins with", "try:"), exit_codes.NOT_FOUND) for id in ("1e3", str(2**63))),
    # Directories: there is no connector, and nothing pretends to be one.
    of_step("B65", "ldap", ("ldap", "try:"), filter="*)(uid=*))(|(uid=*"),
    of_step("B70", "ldap", ("ldap",), base="a,ou=admins"),
    run("B67", '{"n": ["x"]}', "n"),
    run("B67", '["x"]', "input: Input should be an object", "tenuto job list"),
    CliCase("B68", ("secret", "set", "ldap-password"), ("value",), stdin=""),
    # Files.
    *(
        of_step("B71", "sql", ("--step, s.connection", "sqlite:///"), connection=connection, script="SELECT 1")
        for connection in ("sqlite:nonsense", "sqlite://host/x.db", "sqlite:///x.db?mode=rw")
    ),
    CliCase("B71", ("run", "double", "--input", "@../../../../no/such/file"), ("input", "try:")),
    CliCase("B72", ("run", "double", "--input", "@."), ("input",)),
    CliCase("B72", ("apply", "/dev/zero", "--yes"), ("/dev/zero",)),
    CliCase("B72", ("batch", "submit", "demand", "--from", "/proc/self/mem"), ("try:",)),
    CliCase("B73", ("apply", "x" * 255 + ".yaml", "--yes"), ("try:",)),
    CliCase("B73", ("apply", "two\nlines.yaml", "--yes"), ("try:",)),
    rows("B75", "utf16.csv", "n\n1\n".encode("utf-16"), "try:", atomic=True),
    rows("B75", "twice.csv", b"n,n\n1,2\n", "n", atomic=True),
    rows("B75", "quote.csv", b'n\n"1\n', "line", atomic=True),
    rows("B75", "more.csv", b"n\n1,2,3\n", "line 2", atomic=True),
    rows("B75", "wide.csv", b",".join([b"c%d" % each for each in range(100_000)]) + b"\n", "try:", atomic=True),
    rows("B75", "field.csv", b"n\n" + b"9" * 2_000_000 + b"\n", "line 2", atomic=True),
    rows("B75", "half.jsonl", b'{"n": 1}\n{"n": 2', "line 2", atomic=True),
    rows("B76", "gone.csv.not", b"", "try:"),
    rows("B77", "bomb.csv.gz", b"\x1f\x8b" + b"\0" * 100, "try:"),
    # Payloads.
    run("B78", "[" * 100_000, "input"),
    run("B78", '{"n":' * 300 + "1" + "}" * 300, "input"),
    *(run("B79", f'{{"n": {number}}}', "n") for number in ("NaN", "Infinity", "9" * 5000, "1e999", "1.5")),
    run("B80", '{"n": 1, "n": 2}', "input: 'n' is there twice", "say it once"),
    CliCase("B80", ("once", "add", "double", "--in=1h", "--payload", '{"n": 1, "n": 2}'), ("--payload", "twice")),
    CliCase("B80", ("log", "append", "x", "y", "--fields", '{"n": 1, "n": 2}'), ("--fields", "'n' is there twice")),
    schedule("B80", "--manual", "--step", 'double:{"n": 1, "n": 2}', says=("--step", "'n' is there twice")),
    rows("B80", "twice.jsonl", b'{"n": 1, "n": 2}\n', "twice.jsonl, line 1", "'n' is there twice", atomic=True),
    CliCase("B72", ("run", "double", "--input", "@/dev/zero"), ("--input", "longer than")),
    CliCase("B72", ("batch", "submit", "demand", "--from", "/dev/zero"), ("longer than", "shorter rows")),
    CliCase("B72", ("batch", "submit", "demand", "--from", "/dev/zero", "--format=csv"), ("longer than",)),
    run("B81", '{"n": 1, "__class__": "os.system"}', "__class__"),
    run("B81", '{"n": {"py/object": "os.system"}}', "n"),
    file("B81", "python.yaml", b"schedules: !!python/object/apply:os.system ['id']\n", "try:"),
    file("B81", "aliases.yaml", b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (each, each, b",".join([b"*%c" % (each - 1)] * 9)) for each in range(98, 110)), "try:"),
    file("B82", "large.yaml", b"# " + b"x" * 20_000_000, "try:"),
    *(CliCase("B83", ("task", "list", "--limit", limit), ("--limit",)) for limit in ("-1", "0", "1000000000", "x")),
    CliCase("B83", ("log", "show", "x", "--below", str(10**30)), ("try:",)),
    schedule("B83", "--cron", "0 0 * * *", "--zone", "../../etc", *_STEP, says=("zone", "try:")),
    CliCase("B85", ("once", "add", "double", "--in", "1h", "--payload", DOUBLE, *["--tag=x"] * 3, *[
        f"--tag=t{each}" for each in range(1000)]), ("tags",)),
    CliCase("B85", ("schedule", "add", "x" * 100_000, "--manual", *_STEP), ("NAME",)),
    CliCase("B85", ("schedule", "add", "self", "--manual", "--step", "self kind=schedule"), ("runs itself", "break")),
    schedule("B85", "--manual", "--step", "double:" + DOUBLE + "," * 10, says=("--step", "try:")),
    CliCase("B85", ("manifest", "add", "m", "--job", "double", "--after", "m"), ("after",)),
    # Time.
    *(
        schedule("B89", "--cron", cron, *_STEP, says=("cron",))
        for cron in (
            "* * * * * *", "*/0 * * * *", "0-99999999 * * * *", ",".join(["1"] * 10_000) + " * * * *", "@reboot",
            "0 0 30 2 *", "0 0 31 4 *", "0 0 * * Montag", "0 0 L * *", "0 0 1W * *", "0 0 * * 1#2", "", " ",
        )
    ),
    CliCase("B89", ("cron", "explain", "*/0 * * * *"), ("minute",)),
    *(schedule("B90", "--cron", "0 0 * * *", "--zone", zone, *_STEP, says=("zone",)) for zone in ("", "Mars/Base")),
    *(
        CliCase("B91", ("once", "add", "double", "--at", instant, "--payload", DOUBLE), ("at",))
        for instant in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59+14:00", "2031-01-01T00:00:00", "soon", "NaN")
    ),
    *(
        CliCase("B91", ("once", "add", "double", f"--in={span}", "--payload", DOUBLE), ("in",))
        for span in ("-1s", "1e99d", "NaN", "")
    ),
    schedule("B91", "--every=-1s", *_STEP, says=("every",)),
    # Secrets.
    *(CliCase("B93", ("secret", "set", "x"), ("value",), stdin=value) for value in ("abc", "x" * 70_000, "   ")),
    CliCase("B93", ("secret", "set", "${secret:x}"), ("name",), stdin="long enough"),
    of_step("B94", "http.call", ("--step, s.url",), url={"secret": {"secret": "x"}}),
    of_step("B94", "http.call", ("--step, s.url",), url={"secret": "x", "of": "another project"}),
    program("B98", "--step, s.args.0", "pass it by env or stdin", program="echo", args=[{"secret": "x"}]),
    CliCase("B96", ("secret", "set", "x"), ("master_key_file", "TENUTO_MASTER_KEY_FILE"), stdin="long enough",
          env={"TENUTO_MASTER_KEY_FILE": "/no/such/key"}),
    CliCase("B96", ("secret", "set", "x"), ("master_key", "32 bytes"), stdin="long enough",
          env={"TENUTO_MASTER_KEY": "c2hvcnQ="}),
]  # fmt: skip

HOSTILE_TEXTS = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</textarea>", "{{7*7}}", "${7*7}", "javascript:x",
    "\u202egnp.exe", "a\u200bb", "\u0430dmin", WORSE, "100%_\\", "cafe\u0301", "=cmd|' /c calc'!A1", "@SUM(1)", "+1",
    "\x1b]52;c;aGk=\x07", "\x1b]8;;http://evil\x07x", "*)(uid=*))(|(uid=*", "a,ou=admins", "\\2a", "(a+)+$",
)  # fmt: skip
"""B24–B26, B30, B58, B63, B65, B66, B74, B84, B87: kept as they are, and shown without what a terminal would obey."""
KEPT_NUMBERS = ("B24", "B25", "B26", "B30", "B58", "B63", "B65", "B66", "B74", "B84", "B87")
