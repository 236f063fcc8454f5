from __future__ import annotations

import threading

from chaos.load.noise import STEP_S, NoiseProbe


def test_late_wake_ups_are_measured_and_found_by_time():
    """A clock of our own: the second sleep takes 40 ms too long."""
    now, slept, done = [0.0], [], threading.Event()

    def wait(seconds):
        slept.append(seconds)
        now[0] += seconds + (0.04 if len(slept) == 2 else 0.0)
        if len(slept) > 4:
            done.set()
            return True
        return False

    with NoiseProbe(clock=lambda: now[0], wait=wait) as noise:
        assert done.wait(5)

    assert abs(noise.worst_s() - 0.04) < 1e-9
    assert noise.worst_s(end_s=1.5 * STEP_S) < 1e-9
    assert noise.worst_s(start_s=99.0) == 0.0


def test_on_the_real_clock_it_measures_something_and_ends():
    before = threading.active_count()
    with NoiseProbe() as noise:
        threading.Event().wait(0.05)

    assert 0 <= noise.worst_s() < 5
    assert threading.active_count() == before
