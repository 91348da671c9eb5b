"""A picture of one DDP step: which thread of a rank did what when, for each of thinwire's methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ..reporting.svg import css_color, estimate_width, svg_document, svg_line, svg_text
from .trace import Pieces

WIDTH, NAMES, ROW, TITLE, TICK = 900, 150, 16, 26, 22
_STEPS_MS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000)  # between ticks
COLORS = {
    "forward": css_color("kind", 2),
    "backward": css_color("kind", 1),
    "optimizer": css_color("kind", 3),
    "in hooks": css_color("kind", 5),
    "encoding and decoding": css_color("series", 2),
    "sending": css_color("series", 3),
    "waiting": css_color("kind", 4),
}


def select_last_step(pieces: Pieces) -> tuple[float, list[tuple[str, str, float, float]]]:
    """The seconds of the last step of a rank, and its spans (what, thread, begin, end) in seconds after its begin."""
    first = max(begin for what, _, begin, _ in pieces if what == "forward")
    end = max(end for what, _, _, end in pieces if what == "optimizer")
    spans = [(what, thread, max(begin, first), end) for what, thread, begin, end in pieces if end > first]
    return end - first, [(what, thread, begin - first, ended - first) for what, thread, begin, ended in spans]


def draw_timeline(title: str, by_method: Mapping[str, Sequence[Pieces]]) -> str:
    """The last traced step of rank 0 by method, all on one scale: a row for each thread."""
    steps = {method: select_last_step(ranks[0]) for method, ranks in by_method.items()}
    longest = max((seconds for seconds, _ in steps.values()), default=1.0)
    scale = (WIDTH - NAMES) / longest
    body, y = svg_text(0, 14, title, look='font-size="13" font-weight="600"'), float(TITLE)
    for method, (seconds, spans) in steps.items():
        body += svg_text(0, y + 12, f"{method}: {1e3 * seconds:.0f} ms", look='font-weight="600"')
        y += ROW + 2
        for thread in dict.fromkeys(thread for _, thread, _, _ in spans):
            rows = [span for span in spans if span[1] == thread]
            body += svg_text(0, y + 11, _name_thread(thread)) + "".join(_draw_span(span, y, scale) for span in rows)
            y += ROW
        y += 6
    body += _draw_ticks(longest, scale, y)
    return svg_document(title, WIDTH, y + 2 * TICK, body + _draw_legend(y + TICK))


def _name_thread(thread: str) -> str:
    return {"training": "training", "MainThread": "hooks in backward"}.get(thread, thread.removeprefix("thinwire-"))


def _draw_span(span: tuple[str, str, float, float], y: float, scale: float) -> str:
    what, _, begin, end = span
    tip = escape(f"{what}: {1e3 * (end - begin):.1f} ms from {1e3 * begin:.1f} ms")
    place = f'x="{NAMES + scale * begin:.1f}" y="{y:.1f}" width="{max(0.5, scale * (end - begin)):.1f}" height="13"'
    return f'<rect {place} style="fill:{COLORS.get(what, css_color("kind", 0))}"><title>{tip}</title></rect>'


def _draw_ticks(seconds: float, scale: float, y: float) -> str:
    each = next((ms for ms in _STEPS_MS if 1e3 * seconds / ms <= 12), _STEPS_MS[-1])
    body = ""
    for at in range(0, int(1e3 * seconds) + 1, each):
        x = NAMES + scale * at / 1e3
        body += svg_line(x, y, x, y + 4, 'stroke-width="1"') + svg_text(x, y + 15, f"{at} ms", "middle")
    return body


def _draw_legend(y: float) -> str:
    body, x = "", 0.0
    for what, color in COLORS.items():
        body += f'<rect x="{x:.1f}" y="{y + 6:.1f}" width="10" height="10" style="fill:{color}"/>'
        body += svg_text(x + 15, y + 15, what)
        x += 15 + estimate_width(what) + 14
    return body
