from hypothesis import given, settings
from hypothesis import strategies as st

from workers.batcher.dispatch import Dispatcher


def ready(*, messages=4, num_bytes=lambda _: 10, window_bytes=1000, position=0):
    state = Dispatcher(num_bytes)
    state.trainer_position(
        position, window_messages=messages, window_bytes=window_bytes, reset=True
    )
    return state


def send_all(state, worker, num_final=100):
    sent = []
    while (one := state.next_id(num_final)) is not None:
        state.take(one, worker)
        sent.append(one)
    return sent


def moved(state, to, **changes):
    options = {"window_messages": 4, "window_bytes": 1000, "reset": False, **changes}
    state.trainer_position(to, **options)


def test_nothing_goes_out_before_the_trainer_has_said_where_it_stands():
    state = Dispatcher(lambda _: 10)
    assert state.next_id(100) is None
    moved(state, 3, reset=True)
    assert send_all(state, "a") == [3, 4, 5, 6]


def test_the_window_in_messages_moves_with_the_trainer():
    state = ready()
    assert send_all(state, "a") == [0, 1, 2, 3]
    moved(state, 2)
    assert send_all(state, "a") == [4, 5]
    assert sorted(state.outstanding) == [2, 3, 4, 5]


def test_the_window_in_bytes_counts_what_is_ahead_and_lets_a_huge_one_pass_alone():
    sizes = {0: 400, 1: 500, 2: 200, 3: 5000, 4: 1}
    state = ready(num_bytes=lambda one: sizes[one])
    assert send_all(state, "a", 5) == [0, 1]
    moved(state, 1)
    assert send_all(state, "a", 5) == [2]
    moved(state, 3)
    assert send_all(state, "a", 5) == [3]  # larger than the window, but the one waited for
    moved(state, 4)
    assert send_all(state, "a", 5) == [4]


def test_only_fixed_micro_batches_go_out():
    assert send_all(ready(), "a", num_final=2) == [0, 1]


def test_a_dead_workers_micro_batches_go_out_again_lowest_first():
    state = ready()
    for one, worker in enumerate("abab"):
        state.take(one, worker)
    assert state.worker_gone("a") == [0, 2]
    moved(state, 1)
    assert send_all(state, "b") == [2, 4]
    assert state.worker_gone("nobody") == []


def test_a_reset_sends_everything_from_the_trainers_position_again():
    state = ready()
    send_all(state, "a")
    moved(state, 2)
    moved(state, 0, reset=True)
    assert send_all(state, "b") == [0, 1, 2, 3]


def test_an_old_position_changes_nothing():
    state = ready()
    send_all(state, "a")
    moved(state, 3)
    moved(state, 1)
    assert state.position == 3 and sorted(state.outstanding) == [3]


def test_the_trainer_may_be_ahead_after_a_restart_of_the_batcher():
    state = ready(position=50)
    assert send_all(state, "a") == [50, 51, 52, 53]
    moved(state, 60)
    assert send_all(state, "a") == [60, 61, 62, 63]


def test_nothing_goes_out_to_a_trainer_that_has_finished():
    state = ready()
    moved(state, 0, finished=True)
    assert state.next_id(100) is None


class Trainer:
    """Applies in order, drops second copies, and can fall back to its last checkpoint."""

    def __init__(self):
        self.position, self.buffer, self.applied, self.checkpoint = 0, set(), [], 0

    def receive(self, one):
        if one >= self.position:
            self.buffer.add(one)
        while self.position in self.buffer:
            self.buffer.remove(self.position)
            self.applied.append(self.position)
            self.position += 1

    def restart(self):
        self.position = self.checkpoint
        self.buffer.clear()
        del self.applied[self.checkpoint :]


actions = st.lists(
    st.tuples(
        st.sampled_from(
            ["send", "send", "send", "deliver", "deliver", "die", "trainer_dies", "save", "report"]
        ),
        st.integers(0, 5),
    ),
    max_size=120,
)


@given(actions, st.integers(1, 5), st.integers(1, 40), st.integers(1, 25))
@settings(deadline=None, max_examples=300)
def test_whatever_dies_every_micro_batch_is_applied_in_order_exactly_once(
    script, window, window_bytes, total
):
    state, trainer = Dispatcher(lambda one: 1 + one % 7), Trainer()
    options = {"window_messages": window, "window_bytes": window_bytes}
    state.trainer_position(0, reset=True, **options)
    flying = []  # (id, worker)
    generation = {0: 0, 1: 0, 2: 0}

    def send(which):
        one = state.next_id(total)
        if one is not None:
            assert one < max(trainer.position, state.position) + window
            worker = f"{which % 3}.{generation[which % 3]}"
            state.take(one, worker)
            flying.append((one, worker))

    def step(action, which):
        if action == "send":
            send(which)
        elif action == "deliver" and flying:
            trainer.receive(flying.pop(which % len(flying))[0])
        elif action == "die":
            worker = f"{which % 3}.{generation[which % 3]}"
            flying[:] = [item for item in flying if item[1] != worker]
            generation[which % 3] += 1
            state.worker_gone(worker)
        elif action == "trainer_dies":
            trainer.restart()
            flying[:] = flying[: which % (len(flying) + 1)]
            state.trainer_position(trainer.position, reset=True, **options)
        elif action == "save":
            trainer.checkpoint = trainer.position
        elif action == "report":
            state.trainer_position(trainer.position, reset=False, **options)

    for action, which in script:
        step(action, which)
    for _ in range(4 * total + 4):  # then nothing dies any more
        step("send", 0)
        step("deliver", 0)
        step("report", 0)
    assert trainer.applied == list(range(total))
    assert not state.outstanding and not state.lost
