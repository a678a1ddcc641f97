"""Session scripts: outlines of turns with forks."""

from inferload.workload.content.messages import Message, Piece, Role, text_message
from inferload.workload.content.script import Ask, Fork, Script, TurnReply, outline

GOAL = text_message("user", "goal", 10)


def child(name: str, turns: int) -> Script:
    messages: tuple[Message, ...] = (GOAL,)
    for number in range(turns):
        reply = yield Ask((*messages, text_message("user", f"{name}/{number}", 5)), 3, pause_s=float(number))
        assert isinstance(reply, TurnReply)
        messages += (reply.message(),)


def parent() -> Script:
    reply = yield Ask((GOAL,), 7)
    assert isinstance(reply, TurnReply)
    ends = yield Fork((("a", child("a", 2)), ("b", child("b", 1)), ("idle", child("idle", 0))))
    assert isinstance(ends, tuple)
    answers = [end.message() for end in ends if isinstance(end, TurnReply)]
    yield Ask((GOAL, reply.message(), *answers), 4)


def test_an_outline_names_each_turn_by_fork_and_number() -> None:
    turns = list(outline(parent(), 9))
    assert [(turn.path, turn.number) for turn in turns] == [("", 0), ("/a", 0), ("/a", 1), ("/b", 0), ("", 1)]
    assert turns[2].ask.pause_s == 1.0


def test_planned_answers_have_the_requested_length_and_a_name() -> None:
    last = list(outline(parent(), 9))[-1]
    assert [message.role for message in last.ask.messages] == ["user", "assistant", "assistant", "assistant"]
    assert last.ask.messages[1].pieces == (Piece("answer/9/0", 7),)
    assert last.ask.messages[2].pieces == (Piece("answer/9/a/1", 3),)
    assert last.input_tokens == 10 + 7 + 3 + 3


def test_messages_of_the_turn_before_are_not_new() -> None:
    def said(role: Role, tokens: int) -> Message:
        return Message(role, (Piece(f"{role}/{tokens}", tokens),))

    lead = (said("system", 100), said("user", 10), said("assistant", 20), said("user", 30))
    again = (*lead, said("user", 5))

    def child() -> Script:
        yield Ask((*again, said("user", 6)), 3)

    def script() -> Script:
        yield Ask(lead, 4)
        reply = yield Ask(again, 4)  # the last answer was cancelled
        yield Fork((("a", child()),))
        assert isinstance(reply, TurnReply)
        yield Ask((*again, reply.message(), said("tool", 7)), 4)

    assert [turn.new_tokens for turn in outline(script(), 0)] == [60, 5, 6, 7]


def test_unknown_tokens_are_none() -> None:
    def script() -> Script:
        yield Ask((Message("user", (Piece("", None, "how are you"),)),), 4)

    (turn,) = outline(script(), 0)
    assert turn.new_tokens is None
    assert turn.input_tokens is None
