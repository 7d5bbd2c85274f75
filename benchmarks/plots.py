"""Plots as SVG without a library: bars and spans with their figures. No script in the file.

Text and lines use the colours of the reader's light or dark page; a caption gives date and machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LABEL_WIDTH, FIGURE_WIDTH = 760, 200, 110
ROW_HEIGHT, BAR_HEIGHT, TITLE_HEIGHT, PANEL_TITLE_HEIGHT, CAPTION_HEIGHT = 24, 14, 40, 30, 34

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
  .title { font-size: 16px; font-weight: 600; }
  .panel { font-weight: 600; }
  .quiet { fill: #59636e; font-size: 12px; }
  .end { text-anchor: end; }
  .middle { text-anchor: middle; }
  .ours { fill: #0a7d5a; stroke: #0a7d5a; }
  .theirs { fill: #8b949e; stroke: #8b949e; }
  .grid { stroke: #d1d9e0; stroke-width: 1; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .quiet { fill: #9198a1; }
    .ours { fill: #3fb98f; stroke: #3fb98f; }
    .theirs { fill: #7d8590; stroke: #7d8590; }
    .grid { stroke: #3d444d; }
  }
"""


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    ours: bool = False


@dataclass(frozen=True)
class Span:
    """From a median to a high percentile."""

    label: str
    low: float
    high: float
    ours: bool = False


def draw_bars(title: str, panels: Sequence[tuple[str, Sequence[Bar]]], caption: str) -> str:
    """Draw horizontal bars in panels, each with its own linear scale from zero."""
    parts: list[str] = []
    y = TITLE_HEIGHT
    for name, items in panels:
        parts.append(_text(0, y + 18, name, "panel"))
        y += PANEL_TITLE_HEIGHT
        most = max(item.value for item in items)
        for item in items:
            width = max(1.0, (WIDTH - LABEL_WIDTH - FIGURE_WIDTH) * item.value / most)
            kind = "ours" if item.ours else "theirs"
            parts.append(_text(LABEL_WIDTH - 10, y + 12, item.label, "end"))
            parts.append(
                f'<rect class="{kind}" x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" rx="2"/>'
            )
            parts.append(_text(LABEL_WIDTH + width + 8, y + 12, format_figure(item.value)))
            y += ROW_HEIGHT
        y += 10
    return _wrap_page(title, parts, y, caption)


def draw_spans(title: str, axis: str, items: Sequence[Span], caption: str) -> str:
    """Draw a line from p50 (the filled end) to p99 (the hollow end) for each item, on a logarithmic scale."""
    low = 10 ** math.floor(math.log10(min(item.low for item in items)))
    high = 10 ** math.ceil(math.log10(max(item.high for item in items)))
    across = WIDTH - LABEL_WIDTH - FIGURE_WIDTH

    def x(value: float) -> float:
        return LABEL_WIDTH + across * math.log10(value / low) / math.log10(high / low)

    bottom = TITLE_HEIGHT + PANEL_TITLE_HEIGHT + ROW_HEIGHT * len(items)
    parts = [_text(0, TITLE_HEIGHT + 18, axis, "panel")]
    tick = float(low)
    while tick <= high * 1.001:
        parts.append(
            f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TITLE_HEIGHT + 24}" y2="{bottom}"/>'
        )
        parts.append(_text(x(tick), bottom + 16, format_figure(tick), "quiet middle"))
        tick *= 10
    y = TITLE_HEIGHT + PANEL_TITLE_HEIGHT
    for item in items:
        kind, at = "ours" if item.ours else "theirs", y + 8
        begin, end = x(item.low), x(item.high)
        parts.append(_text(LABEL_WIDTH - 10, y + 12, item.label, "end"))
        parts.append(f'<line class="{kind}" x1="{begin:.1f}" x2="{end:.1f}" y1="{at}" y2="{at}" stroke-width="3"/>')
        parts.append(f'<circle class="{kind}" cx="{begin:.1f}" cy="{at}" r="5"/>')
        ring = f'cx="{end:.1f}" cy="{at}" r="4" stroke-width="2" style="fill: none"'
        parts.append(f'<circle class="{kind}" {ring}/>')
        parts.append(_text(end + 12, y + 12, f"{format_figure(item.low)} / {format_figure(item.high)}"))
        y += ROW_HEIGHT
    return _wrap_page(title, parts, y + 24, caption)


def format_figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _wrap_page(title: str, parts: Sequence[str], y: float, caption: str) -> str:
    height = y + CAPTION_HEIGHT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 0 {WIDTH + 16} {height:.0f}" role="img" '
            f'width="{WIDTH + 16}" height="{height:.0f}" aria-label="{escape(title)}">',
            f"<style>{STYLE}</style>",
            _text(0, 22, title, "title"),
            *parts,
            _text(0, y + 18, caption, "quiet"),
            "</svg>",
            "",
        ]
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}>{escape(text)}</text>'
