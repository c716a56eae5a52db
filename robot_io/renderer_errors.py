"""The remedy for an environment's renderer that does not load."""

import os
import re
from collections.abc import Iterator

_GRAPHICS = re.compile(r"(?i:opengl|libgl|\bglx?\b|\begl|glfw|osmesa|gladload|mujoco_gl)|DISPLAY|NoSuchDisplay")


def renderer_remedy(error: BaseException) -> str:
    """A sentence that says how to load another renderer, if that is what failed; else empty."""
    if not any(_GRAPHICS.search(f"{type(each).__module__} {type(each).__name__} {each}") for each in _chain(error)):
        return ""
    tried = os.environ.get("MUJOCO_GL", "")
    if tried.lower() == "egl":
        return " MUJOCO_GL=egl did not load: install Mesa or a graphics driver, or start with MUJOCO_GL=osmesa."
    found = f"MUJOCO_GL={tried} did not load" if tried else "A renderer did not load"
    return f" {found}: start again without a screen, MUJOCO_GL=egl vla-rl ... (or MUJOCO_GL=osmesa)."


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
