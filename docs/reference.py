"""What of the site is generated when it is built, as a hook of MkDocs: every option with its default and meaning, from
the dataclasses; the verbs, from their parsers; the API, from the modules; notebooks, as they were executed.

Links of pages to files outside of docs/ lead to the repository, where ``repo_url`` says where that is.
"""

import dataclasses
import json
import logging
import posixpath
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from robot_io.mock_robot import MockRobotConfig
from vla_rl.acting.record import RecordConfig
from vla_rl.acting.rollout import RolloutConfig
from vla_rl.cli.main import VERBS, make_parser
from vla_rl.core.config import PART
from vla_rl.core.registry import KINDS, find, names
from vla_rl.policies.corrector_training import CorrectorConfig
from vla_rl.training.config import RunConfig
from vla_rl.training.finetune import FinetuneConfig
from vla_rl.training.world_model import WorldModelConfig

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = {
    "A run: `vla-rl train`, `demo`": RunConfig,
    "A rollout: `vla-rl rollout`, `robot check`": RolloutConfig,
    "Offline: `vla-rl finetune`": FinetuneConfig,
    "A recording: `vla-rl record`": RecordConfig,
    "A world model: `vla-rl imagine`": WorldModelConfig,
    "A residual head: `vla-rl corrector`": CorrectorConfig,
    "The mock robot: `robot`": MockRobotConfig,
}
CHOSEN = {"algorithms": "learning", "strategies": "execution", "policies": "policy", "takeovers": "takeover.options"}
API = {
    "python": ("Python", "api acting.env training.run report.outcomes data.sources"),
    "core": (
        "Core: types and protocols",
        "core.types core.policy_spec core.protocols core.clock core.errors core.registry core.config",
    ),
    "data": (
        "Data",
        "data.store data.cache data.lerobot_import data.lerobot_export data.doctor",
    ),
    "learning": (
        "Learning",
        "credit advantage critics.hierarchical algorithms.base algorithms.cloning algorithms.sampling training.rounds "
        "outcomes.detector outcomes.ensemble outcomes.labeling outcomes.deployed",
    ),
    "policies": (
        "Policies",
        "policies.base policies.trainable policies.folders policies.flow_vla.config policies.best_of_n "
        "policies.remote.policy policies.remote.interface policies.proxy.model acting.serve",
    ),
    "execution": ("Execution", "execution.loop execution.executor execution.schedule execution.strategies.base"),
    "robots": (
        "Robots and simulation",
        "robot_io.gate robot_io.recorder robot_io.takeover acting.robots sim.interface",
    ),
    "deployment": ("Deployment", "deploy_trt.runtime.policy deploy_trt.runtime.refresh deploy_trt.export.deployment"),
    "world_model": ("World model", "world_model.protocol world_model.feature_world world_model.imagined_env"),
}
OTHER_PACKAGES = ("robot_io", "sim.", "deploy_trt", "world_model")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)\s#]+|[^)\s#:]+\.ipynb)(#[^)\s]*)?\)")
logger = logging.getLogger("mkdocs.plugins.reference")  # what is warned of here fails a strict build


class Option(NamedTuple):
    """One field of a config.

    Attributes:
        name: of the field.
        default: as a person would write it in YAML; empty: it must be given.
        meaning: of the docstring of its class, in Markdown; empty: nobody has said it.
        section: the dataclass of a section, else None.
        kind: a key of `vla_rl.core.registry.KINDS`, if a part that is chosen by name brings the section; else empty.
    """

    name: str
    default: str
    meaning: str
    section: type | None
    kind: str


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {
        "reference/options.md": options_page(),
        "reference/commands.md": commands_page(),
        **{f"reference/api/{name}.md": _api_page(*page) for name, page in API.items()},
    }
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        for name, content in notebook_pages(file.src_uri, json.loads(file.content_string)).items():
            files.append(File.generated(config, name, content=content))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Notebooks stand in the navigation under the names of their files."""
    config.nav = json.loads(json.dumps(config.nav).replace(".ipynb", ".md"))
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links that leave docs/ to the repository, and warn of those that lead nowhere."""
    del files
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def lead(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        if target.startswith("docs/"):
            return link[0].replace(".ipynb", ".md")
        if not (ROOT / target).exists():
            logger.warning("%s links to %s, which is not there", page.file.src_uri, target)
        if target == "README.md":
            return f"[{link[1]}]({posixpath.relpath('docs/index.md', folder)})"
        return f"[{link[1]}]({config.repo_url}/blob/main/{target})" if config.repo_url else f"{link[1]} (`{target}`)"

    return _LINK.sub(lead, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name the dialog of the search, which the theme leaves without a name for screen readers."""
    del page, config
    return output.replace('"search" role="dialog"', '"search" role="dialog" aria-label="Search"')


def meanings(config_class: type) -> dict[str, str]:
    """What the docstrings of a dataclass and of its bases say of its fields."""
    found: dict[str, str] = {}
    for base in reversed(config_class.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        # griffe knows one name a line; ours may give several the same meaning.
        text = re.sub(r"^( +)(\w+(?:, \w+)+): ", _with_one_name, base.__doc__ or "", flags=re.MULTILINE)
        for section in griffe.Docstring(text, lineno=1).parse("google", warnings=False):
            if section.kind in (griffe.DocstringSectionKind.attributes, griffe.DocstringSectionKind.parameters):
                said = {item.name: " ".join(item.description.split()).replace("``", "`") for item in section.value}
                found |= {name: meaning for joined, meaning in said.items() for name in joined.split("__and__")}
    return found


def _with_one_name(start: re.Match[str]) -> str:
    return f"{start[1]}{start[2].replace(', ', '__and__')}: "


def options(config_class: type) -> list[Option]:
    """The fields of a dataclass, in order."""
    hints, said = get_type_hints(config_class), meanings(config_class)
    found = []
    for field in dataclasses.fields(config_class):
        made = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        part = field.metadata.get(PART)
        hint = hints[field.name]
        section = hint if dataclasses.is_dataclass(hint) and part is None else None
        default = "" if made is dataclasses.MISSING or section or part else _plain(made)
        found.append(Option(field.name, default, said.get(field.name, ""), section, part.kind if part else ""))
    return found


def every_config() -> Iterator[tuple[str, str, type]]:
    """(title, path of the section below it, class) of every dataclass of options that a person can reach, each class
    once, top down.
    """
    seen: set[type] = set()

    def below(title: str, path: str, config_class: type) -> Iterator[tuple[str, str, type]]:
        if config_class not in seen:
            seen.add(config_class)
            yield title, path, config_class
            for option in options(config_class):
                if option.section:
                    yield from below(title, f"{path}.{option.name}".lstrip("."), option.section)

    for title, config_class in CONFIGS.items():
        yield from below(title, "", config_class)
    for kind, section in CHOSEN.items():
        for config_class, sharing in _chosen(kind).items():
            title = f"{KINDS[kind].capitalize()} {', '.join(f'`{name}`' for name in sharing)}: `{section}`"
            yield from below(title, "", config_class)


def _chosen(kind: str) -> dict[type, list[str]]:
    """The dataclasses of options that parts of a kind have -> the names of those parts."""
    found: dict[type, list[str]] = {}
    for name in names(kind):
        config_class = getattr(find(kind, name), "config_class", None)
        if config_class is not None:
            found.setdefault(config_class, []).append(name)
    return found


def documented_share() -> float:
    """Of all options that are no sections, how many have a meaning."""
    every = [option for _, _, config in every_config() for option in options(config)]
    leaves = [option for option in every if not (option.section or option.kind)]
    return sum(bool(option.meaning) for option in leaves) / len(leaves)


def options_page() -> str:
    """Every dataclass of options under a heading of its own, which the sections of others link to."""
    lines = ["# Options", "", _OPTIONS_INTRODUCTION]
    for title, path, config in every_config():
        heading = f"### `{path}`" if path else f"## {title}"
        lines += ["", f"{heading} {{ #{config.__name__.lower()} }}", ""]
        lines += [
            f"Read by `{config.__module__}.{config.__name__}`.",
            "",
            "| option | default | meaning |",
            "|---|---|---|",
        ]
        lines += [_row(option) for option in options(config)]
    return "\n".join(lines) + "\n"


def _row(option: Option) -> str:
    if option.section:
        default = f"[section](#{option.section.__name__.lower()})"
    else:
        default = f"of the {KINDS[option.kind]}" if option.kind else f"`{option.default}`"
    meaning = option.meaning.replace("|", "\\|") or (
        "options of its own" if option.section else "those of the chosen part"
    )
    return f"| `{option.name}` | {default} | {meaning} |"


_OPTIONS_INTRODUCTION = """Generated from the dataclasses: what stands here is what the code reads. Every option is
`section.key=value` at the end of a command (`vla-rl train ... budget.rounds=5`), or stands in a YAML
file under its sections. The resolved options of a run are in its `config.yaml`. A section of which a name decides
(`algorithm`, `execution.strategy`, `policy.kind`, `takeover.supervisor`) has the options of the chosen part, and no
others; choose another one and its options are below, under its name."""


def commands_page() -> str:
    """The help of every verb, as it prints it."""
    lines = [
        "# Commands",
        "",
        "What `vla-rl VERB --help` prints. Exit codes: 0 done, 1 the check that was asked for failed,",
    ]
    lines += ["2 bad input, said in one line, 130 interrupted. How options are written: [Options](options.md).", ""]
    for verb, purpose in VERBS.items():
        lines += [f"## vla-rl {verb}", "", f"{purpose[0].upper()}{purpose[1:]}.", ""]
        lines += ["```text", make_parser(verb).format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def notebook_pages(name: str, notebook: dict[str, Any]) -> dict[str, str]:
    """A notebook as a page, and its pictures beside it: file name -> content."""
    stem, lines, pictures = name.removesuffix(".ipynb"), list[str](), dict[str, str]()
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        lines += [source, ""] if cell["cell_type"] == "markdown" else ["```python", source, "```", ""]
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "text/html" in data:
                lines += ["".join(data["text/html"]), ""]
            elif "image/svg+xml" in data:
                picture = f"{stem}-{len(pictures)}.svg"
                pictures[picture] = "".join(data["image/svg+xml"])
                lines += [f"![{cell['metadata']['alt']}]({posixpath.basename(picture)})", ""]
            else:
                lines += ["```text", "".join(data["text/plain"]).rstrip(), "```", ""]
    lines += [f"*This page is the notebook `docs/{name}`, executed; the tests execute it again.*", ""]
    return {f"{stem}.md": "\n".join(lines), **pictures}


def _api_page(title: str, modules: str) -> str:
    full = [name if name.startswith(OTHER_PACKAGES) else f"vla_rl.{name}" for name in modules.split()]
    return "\n\n".join([f"# {title}", *(f"::: {name}" for name in full)]) + "\n"


def _plain(value: Any) -> str:
    """A default as YAML has it, on one line."""
    value = value.value if isinstance(value, Enum) else value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        value = list(value)
    return value if isinstance(value, str) and value else json.dumps(value)
