"""Sequence diagrams as SVG: actors side by side, time from top to bottom."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

COLUMN: Final = 214
MARGIN: Final = 20
HEAD: Final = 44
TOP: Final = 20
ROW: Final = 37
LINE: Final = 17
CHARACTER: Final = 6.7
"""The pixels of a character of a note, with a margin because browsers choose different fonts."""

STYLE: Final = """
  .card { fill: #ffffff; stroke: #d0d7de; }
  .actor { fill: #eaeef2; stroke: #8c959f; }
  .state { fill: #ddf4ff; stroke: #54aeff; }
  .note { fill: #fff8c5; stroke: #d4a72c; }
  .life { stroke: #8c959f; stroke-dasharray: 2 4; }
  .line { stroke: #24292f; stroke-width: 1.4; fill: none; }
  .reply { stroke-dasharray: 6 4; }
  .head { fill: #24292f; }
  text { fill: #24292f; font: 12px -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; text-anchor: middle; }
  .name { font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #30363d; }
    .actor { fill: #21262d; stroke: #6e7681; }
    .state { fill: #0c2d4d; stroke: #388bfd; }
    .note { fill: #2e2a14; stroke: #9e6a03; }
    .life { stroke: #6e7681; }
    .line { stroke: #e6edf3; }
    .head { fill: #e6edf3; }
    text { fill: #e6edf3; }
  }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """A column; a column that keeps state has another colour."""

    name: str
    detail: str
    keeps_state: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """An arrow between two columns; a reply is drawn dashed."""

    sender: int
    receiver: int
    text: str
    is_reply: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """A box on a column, each line of it given."""

    actor: int
    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    title: str
    actors: Sequence[Actor]
    steps: Sequence[Message | Note]
    column: int = COLUMN

    def svg(self) -> str:
        """The whole file."""
        width = self.column * len(self.actors) + 2 * MARGIN
        y = TOP + HEAD + 14
        parts: list[str] = []
        for step in self.steps:
            if isinstance(step, Note):
                parts.append(self._note(step, y))
                y += LINE * len(step.lines) + 20
            else:
                parts.append(self._message(step, y))
                y += ROW
        height = y + MARGIN - 4
        lives = [
            f'<line class="life" x1="{self._x(i)}" y1="{TOP + HEAD}" x2="{self._x(i)}" y2="{height - MARGIN}"/>'
            for i in range(len(self.actors))
        ]
        heads = [self._head(i, actor) for i, actor in enumerate(self.actors)]
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            f"<title>{escape(self.title)}</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
            '<path class="head" d="M0,0 L9,4 L0,8 z"/></marker></defs>',
            f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            *lives, *heads, *parts, "</svg>", "",
        ])  # fmt: skip

    def _x(self, actor: int) -> int:
        return MARGIN + self.column * actor + self.column // 2

    def _head(self, index: int, actor: Actor) -> str:
        x, half = self._x(index), (self.column - 24) // 2
        return (
            f'<rect class="{"state" if actor.keeps_state else "actor"}" x="{x - half}" y="{TOP}" '
            f'width="{2 * half}" height="{HEAD}" rx="6"/>'
            f'<text class="name" x="{x}" y="{TOP + 18}">{escape(actor.name)}</text>'
            f'<text x="{x}" y="{TOP + 35}">{escape(actor.detail)}</text>'
        )

    def _message(self, step: Message, y: int) -> str:
        begin, end, line = self._x(step.sender), self._x(step.receiver), y + 24
        towards = 1 if end > begin else -1
        return (
            f'<text x="{(begin + end) // 2}" y="{line - 6}">{escape(step.text)}</text>'
            f'<line class="line{" reply" if step.is_reply else ""}" x1="{begin + 3 * towards}" y1="{line}" '
            f'x2="{end - 3 * towards}" y2="{line}" marker-end="url(#head)"/>'
        )

    def _note(self, step: Note, y: int) -> str:
        longest = max(len(line) for line in step.lines)
        half = max(60, int(longest * CHARACTER / 2) + 10)
        x = min(max(self._x(step.actor), half + 8), self.column * len(self.actors) + 2 * MARGIN - half - 8)
        texts = [
            f'<text x="{x}" y="{y + 17 + LINE * number}">{escape(line)}</text>'
            for number, line in enumerate(step.lines)
        ]
        box = (
            f'<rect class="note" x="{x - half}" y="{y}" width="{2 * half}" '
            f'height="{LINE * len(step.lines) + 10}" rx="4"/>'
        )
        return box + "".join(texts)
