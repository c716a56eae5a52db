"""What a health check says: findings, a table of them, and one picture of what is suspicious."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from vla_rl.core.types import Episode, Uint8Array

LARGEST_EVIDENCE_PX = 128
_MOST_EVIDENCE, _COLUMNS, _CAPTION_PX, _MARGIN_PX = 36, 6, 12, 56


@dataclass(frozen=True, slots=True)
class Evidence:
    """A suspicious picture: uint8 [H, W, 3], at most 128 pixels high, and a caption."""

    picture: Uint8Array
    caption: str


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """One thing that is suspicious about the data.

    Attributes:
        check: Name of the check.
        severity: ``problem``: training on it would be wrong; ``note``: it costs something, or may be intended.
        episodes: Ids of the episodes concerned.
        detail: What was found and what was expected, with numbers.
        remedy: What to do.
        evidence: Pictures of it.

    Example:
        >>> HealthFinding("length", "note", ("demo-00000",), "it has 2 steps", "leave it out (vla-rl edit)").severity
        'note'
    """

    check: str
    severity: Literal["problem", "note"]
    episodes: tuple[str, ...]
    detail: str
    remedy: str
    evidence: tuple[Evidence, ...] = ()


def problem(
    check: str, episodes: Iterable[Episode], detail: str, remedy: str, evidence: Sequence[Evidence] = ()
) -> HealthFinding:
    """Return a finding about episodes that must not be trained on unchanged."""
    return HealthFinding(check, "problem", tuple(each.episode_id for each in episodes), detail, remedy, tuple(evidence))


def note(check: str, episodes: Iterable[Episode], detail: str, remedy: str) -> HealthFinding:
    """Return a finding that costs something, or may be intended. No episodes: it concerns all of them."""
    return HealthFinding(check, "note", tuple(each.episode_id for each in episodes), detail, remedy)


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What a check of the data found in a number of episodes and steps; problems come first.

    Example:
        >>> print(HealthReport(episodes=3, steps=120, findings=()).table())
        3 episodes, 120 steps: no problem found
    """

    episodes: int
    steps: int
    findings: tuple[HealthFinding, ...]

    @property
    def problems(self) -> int:
        """Number of findings that are problems."""
        return sum(finding.severity == "problem" for finding in self.findings)

    def to_plain(self) -> dict[str, Any]:
        """Return the report as JSON data, without pictures."""
        findings = [asdict(replace(finding, evidence=())) for finding in self.findings]
        return {"episodes": self.episodes, "steps": self.steps, "problems": self.problems, "findings": findings}

    def table(self) -> str:
        """Return the report as text: one line per finding."""
        counted = f"{self.episodes} episodes, {self.steps} steps: "
        if not self.findings:
            return counted + "no problem found"
        rows = [("SEVERITY", "CHECK", "EPISODES", "FOUND", "WHAT TO DO")]
        for finding in self.findings:
            few = ", ".join(finding.episodes[:2]) + (
                f" and {len(finding.episodes) - 2} more" if finding.episodes[2:] else ""
            )
            rows.append((finding.severity, finding.check, few or "all", finding.detail, finding.remedy))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = ["  ".join([*map(str.ljust, row[:4], widths), row[4]]) for row in rows]
        notes = len(self.findings) - self.problems
        return "\n".join([f"{counted}{self.problems} problems, {notes} notes", *lines])

    def picture(self) -> bytes | None:
        """Return the suspicious pictures with their captions side by side, as PNG; None if there are none."""
        evidence = [picture for finding in self.findings for picture in finding.evidence]
        return _contact_sheet(evidence[:_MOST_EVIDENCE]) if evidence else None


def _contact_sheet(evidence: Sequence[Evidence]) -> bytes:
    from PIL import Image, ImageDraw, ImageOps

    cell, width = LARGEST_EVIDENCE_PX + _CAPTION_PX, LARGEST_EVIDENCE_PX + _MARGIN_PX
    rows = -(-len(evidence) // _COLUMNS)
    sheet = Image.new("RGB", (min(len(evidence), _COLUMNS) * width, rows * cell), "white")
    for number, each in enumerate(evidence):
        left, top = number % _COLUMNS * width, number // _COLUMNS * cell
        picture = Image.fromarray(np.ascontiguousarray(each.picture))
        picture = ImageOps.contain(picture, (width - 4, LARGEST_EVIDENCE_PX))
        sheet.paste(picture, (left, top + _CAPTION_PX))
        ImageDraw.Draw(sheet).text((left, top), each.caption[:32], fill="black")
    content = io.BytesIO()
    sheet.save(content, "PNG")
    return content.getvalue()
