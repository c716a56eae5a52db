"""Run folders of earlier versions: their configs in today's words. One function for each thing that was renamed."""

from typing import Any


def upgrade(raw: dict[str, Any]) -> dict[str, Any]:
    """Today's form of the config of a run of any version, as plain data; one of today stays as it is."""
    for change in _CHANGES:
        raw = change(raw)
    return raw


def _supervisor_by_name(raw: dict[str, Any]) -> dict[str, Any]:
    """There was one supervisor, the scripted one, whose section was called ``takeover.corrector``."""
    takeover = raw.get("takeover") or {}
    if "corrector" not in takeover:
        return raw
    kept = {key: value for key, value in takeover.items() if key != "corrector"}
    return {**raw, "takeover": {**kept, "supervisor": "scripted", "options": takeover["corrector"]}}


_CHANGES = (_supervisor_by_name,)
