"""Static files: their address, headers and compression, and the size limits of the dashboard."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tenuto.web.assets import FOLDER, Assets
from tenuto.web.rendering import TEMPLATES
from tests.api.conftest import ApiClient, assert_problem
from tests.web.conftest import get_page, log_in

SCRIPTS, STYLES = sorted(FOLDER.rglob("*.js")), sorted(FOLDER.rglob("*.css"))


async def test_static_files_are_served_compressed_below_the_hash_of_all(service: ApiClient) -> None:
    await log_in(service)
    page = (await get_page(service, "/")).text
    addresses = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', page))
    assert len(addresses) >= 8
    versions = {address.split("/")[2] for address in addresses}
    assert len(versions) == 1
    service.client.cookies.clear()
    for address in addresses:
        response = await service.client.get(address)
        assert response.status_code == 200, address
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert response.headers["content-encoding"] == "gzip"
        assert response.headers["x-content-type-options"] == "nosniff"
        plain = await service.client.get(address, headers={"Accept-Encoding": "identity"})
        assert plain.content == response.content
        assert_problem(await service.client.get(address.replace(versions.copy().pop(), "0" * 16)), 404)
    assert_problem(await service.client.get(f"/static/{versions.pop()}/../../settings.py"), 404)


def test_scripts_and_styles_keep_their_size_limits() -> None:
    script, style = (b"".join(file.read_bytes() for file in files) for files in (SCRIPTS, STYLES))
    assert len(script.splitlines()) <= 2500
    assert len(gzip.compress(script, 9)) <= 30_000
    assert len(style.splitlines()) <= 900
    assert len(gzip.compress(style, 9)) <= 12_000
    assert len(SCRIPTS) <= 12
    for file in (*SCRIPTS, *STYLES, *TEMPLATES.rglob("*.html")):
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            assert "://" not in line or line.strip().startswith("//"), f"{file.name}:{number}"
            assert len(line) <= 400 or file.suffix == ".html", f"{file.name}:{number}"


def test_templates_escape_everything_and_have_no_inline_code() -> None:
    for file in TEMPLATES.rglob("*.html"):
        text = file.read_text("utf-8")
        assert not re.search(r"\|\s*safe\b|autoescape|<style|\son[a-z]+=|javascript:|<[a-z]+ [^>{]*\bstyle=", text), (
            file.name
        )
        assert not re.search(r"<script(?![^>]* src=)", text), file.name


def test_linter_finds_nothing_in_the_scripts() -> None:
    linter = shutil.which("oxlint", path=str(Path(sys.executable).parent))
    assert linter is not None
    done = subprocess.run([linter, str(FOLDER)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Found 0 warnings and 0 errors" in done.stdout, done.stdout


def test_changed_files_are_read_again_only_with_reload(tmp_path: Path) -> None:
    style, script = tmp_path / "app.css", tmp_path / "app.js"
    style.write_text("a {}")
    script.write_text("1;")
    fixed, reloaded = Assets([("", tmp_path)]), Assets([("", tmp_path)], reload=True)
    first, code = reloaded.version, reloaded.code_version
    assert fixed.version == first
    assert fixed.code_version is None
    later = time.time() + 10
    style.write_text("a { color: red }")
    os.utime(style, (later, later))
    assert reloaded.version != first
    assert reloaded.find(reloaded.version, "app.css").content == b"a { color: red }"
    assert reloaded.code_version == code, "a changed style sheet needs no new page"
    os.utime(script, (later + 10, later + 10))
    assert reloaded.code_version != code
    assert fixed.version == first
