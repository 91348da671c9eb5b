from xml.etree import ElementTree

from thinwire_lab.bench.timeline import COLORS, draw_timeline, select_last_step
from thinwire_lab.reporting.svg import to_standalone

STEP = [
    ("forward", "training", 0.0, 0.1),
    ("encoding and decoding", "MainThread", 0.15, 0.16),
    ("sending", "thinwire-comm", 0.16, 0.3),
    ("backward", "training", 0.1, 0.35),
    ("waiting", "MainThread", 0.3, 0.35),
    ("optimizer", "training", 0.35, 0.4),
]


def shifted(by):
    return [(what, thread, begin + by, end + by) for what, thread, begin, end in STEP]


def test_the_last_step_is_drawn_from_its_begin():
    seconds, spans = select_last_step([*shifted(5.0), *shifted(7.0)])
    assert abs(seconds - 0.4) < 1e-9 and len(spans) == len(STEP)
    for (what, thread, begin, end), (expected, of, first, last) in zip(spans, STEP, strict=True):
        assert (what, thread) == (expected, of) and abs(begin - first) < 1e-9 and abs(end - last) < 1e-9


def test_every_thread_of_every_method_has_a_row_and_every_kind_a_color():
    svg = to_standalone(draw_timeline("a <model>", {"one": [shifted(1.0)], "two": [shifted(2.0)]}))
    texts = [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("training") == texts.count("comm") == texts.count("hooks in backward") == 2
    assert "one: 400 ms" in texts and "a <model>" in texts and set(COLORS) <= set(texts)
