"""Symbols and colours of states; each of symbol, name and colour identifies a state."""

from __future__ import annotations

_STYLES = {
    "waiting": ("○", "dim"),
    "scheduled": ("◷", "cyan"),
    "queued": ("◌", "blue"),
    "running": ("●", "yellow"),
    "in_progress": ("●", "yellow"),
    "completed": ("✓", "green"),
    "completed_with_warning": ("▲", "yellow"),
    "completed_with_error": ("▲", "red"),
    "failed": ("✕", "red"),
    "cancelled": ("⊘", "magenta"),
    "pending": ("◷", "cyan"),
    "terminated": ("⊘", "magenta"),
    "alive": ("●", "green"),
    "draining": ("◐", "yellow"),
    "dead": ("✕", "red"),
    "stale": ("✕", "red"),
    "ended": ("○", "dim"),
    "open": ("●", "green"),
    "paused": ("‖", "yellow"),
    "stopping": ("◐", "magenta"),
    "on": ("●", "green"),
    "off": ("○", "dim"),
    "fired": ("✓", "green"),
    "coalesced": ("≡", "cyan"),
    "skipped": ("⊘", "yellow"),
    "missed": ("✕", "red"),
    "aborted": ("⊘", "magenta"),
    "filling": ("◔", "cyan"),
    "some_failed": ("▲", "red"),
    "awaiting_intervention": ("✉", "red"),
    "retried": ("↻", "cyan"),
    "acknowledged": ("✓", "dim"),
    "approved": ("✓", "green"),
    "rejected": ("✕", "red"),
    "withdrawn": ("○", "dim"),
    "valid": ("●", "green"),
    "accepted": ("●", "green"),
    "current": ("✓", "green"),
    "behind": ("▲", "yellow"),
    "newer": ("✕", "red"),
    "expired": ("○", "dim"),
    "revoked": ("⊘", "magenta"),
    "created": ("+", "green"),
    "deleted": ("-", "red"),
    "changed": ("~", "yellow"),
    "unchanged": ("=", "dim"),
    "kept": ("!", "magenta"),
    "ok": ("✓", "green"),
    "note": ("i", "cyan"),
    "warning": ("▲", "yellow"),
    "problem": ("✕", "red"),
    "error": ("▲", "red"),
    "lost": ("✕", "red"),
}


def state_symbol(state: str) -> str:
    return _STYLES.get(state, ("?", ""))[0]


def state_colour(state: str) -> str:
    return _STYLES.get(state, ("", ""))[1]


def state_label(state: str, name: str | None = None) -> str:
    """Return a state as symbol and name; another name may replace its own."""
    return f"{state_symbol(state)} {state.replace('_', ' ') if name is None else name}"
