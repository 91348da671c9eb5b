"""`HookState` and `hook`: registered as torch's own hooks are, they do what `attach` does."""

from helpers import hook_state_jobs as jobs


def test_a_registered_state_does_what_attach_does(pool):
    (first, sent), (second, _) = pool.run(2, jobs.register_and_attach)
    assert first == second and len(set(first)) == 1
    assert len(set(sent)) == 1 and sent[0] > 0


def test_attach_takes_over_a_model_with_a_state_registered_or_not(pool):
    for steps, (kind, text) in pool.run(2, jobs.attach_after_state):
        assert steps == [3, 3]
        assert kind == "ClosedError" and "detached" in text


REFUSALS = (
    "the composition is missing",
    "got Net, a plain module",
    "unknown option 'warmup'; the options are scaler, warmup_steps",
    "warmup_steps",
    "attached to this model already",
    "has a model already",
    "no model yet; call bind(model)",
    "no model yet; call bind(model)",
)


def test_wrong_calls_are_refused_with_the_remedy(pool):
    for errors in pool.run(2, jobs.refusals):
        assert len(errors) == len(REFUSALS)
        for (kind, text), expected in zip(errors, REFUSALS, strict=True):
            assert kind == "CompositionError" and expected in text, (kind, text)


def test_a_state_does_not_keep_its_model_alive(pool):
    for is_freed, (kind, text) in pool.run(2, jobs.collect_model):
        assert is_freed and kind == "ClosedError" and "no longer exists" in text


def test_the_users_profiler_shows_our_ranges(pool):
    for names in pool.run(2, jobs.profile_step):
        assert {"thinwire::hook", "thinwire::wait"} <= names
