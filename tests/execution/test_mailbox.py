"""The mailbox: latest wins, never torn, never waits."""

import multiprocessing

import numpy as np
import pytest

from vla_rl.execution.mailbox import Fields, Mailbox

FIELDS: Fields = {"number": ((), np.int64), "rows": ((3, 5), np.float32), "image": ((200, 200, 3), np.uint8)}


@pytest.fixture
def pair():
    writer = Mailbox(FIELDS)
    reader = Mailbox(FIELDS, writer.name)
    yield writer, reader
    reader.close()
    writer.close()


def post(writer: Mailbox, number: int) -> None:
    writer.draft["number"][()] = number
    writer.draft["rows"][:] = number
    writer.draft["image"][:] = number % 256
    writer.publish()


def test_a_message_arrives_once_and_whole(pair: tuple[Mailbox, Mailbox]) -> None:
    writer, reader = pair
    assert reader.take() is None
    for number in range(5):
        post(writer, number)
        message = reader.take()
        assert message is not None
        assert message["number"] == number
        assert (message["rows"] == number).all()
        assert message["rows"].shape == (3, 5)
        assert (message["image"] == number).all()
        assert reader.take() is None


def test_the_latest_wins(pair: tuple[Mailbox, Mailbox]) -> None:
    writer, reader = pair
    for number in range(7):
        post(writer, number)
    message = reader.take()
    assert message is not None
    assert message["number"] == 6
    assert reader.take() is None


def test_a_message_that_was_taken_does_not_change(pair: tuple[Mailbox, Mailbox]) -> None:
    writer, reader = pair
    post(writer, 1)
    message = reader.take()
    assert message is not None
    post(writer, 2)
    post(writer, 3)
    assert message["number"] == 1
    assert (message["image"] == 1).all()


def test_a_draft_that_is_never_published_is_never_seen(pair: tuple[Mailbox, Mailbox]) -> None:
    writer, reader = pair
    post(writer, 1)
    writer.draft["number"][()] = 99
    message = reader.take()
    assert message is not None
    assert message["number"] == 1


def write_forever(name: str) -> None:
    writer = Mailbox(FIELDS, name)
    number = 0
    while True:
        number += 1
        post(writer, number)


@pytest.mark.slow
def test_messages_are_never_torn_under_a_furious_writer_that_is_killed() -> None:
    mailbox = Mailbox(FIELDS)
    process = multiprocessing.get_context("spawn").Process(target=write_forever, args=(mailbox.name,), daemon=True)
    process.start()
    taken, last = 0, 0
    while taken < 300:
        message = mailbox.take()
        if message is not None:
            number = int(message["number"])
            assert number > last
            assert (message["rows"] == np.float32(number)).all()
            assert (message["image"] == number % 256).all()
            taken, last = taken + 1, number
    process.kill()
    process.join()
    for _ in range(10):
        message = mailbox.take() or message
    assert message is not None
    assert (message["image"] == int(message["number"]) % 256).all()
    mailbox.close()
