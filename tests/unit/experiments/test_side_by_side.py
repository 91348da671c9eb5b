import math

from thinwire.experiments.side_by_side import side_by_side


def square(task, share):
    share(0.5)
    return {"square": task * task}


def test_results_come_in_the_order_of_the_tasks():
    heard = []
    found = side_by_side(f"{__name__}:square", [1, 2, 3], heard.append, processes=2)
    assert found == [{"square": 1}, {"square": 4}, {"square": 9}]
    assert math.isclose(heard[-1], 1.0)
