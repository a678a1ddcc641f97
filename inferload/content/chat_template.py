"""What a chat template puts around messages, learnt from a server that tokenizes whole chats. Pure: the asking is the caller's.

A template is known by token ids: those before the text of a context's first message, between the texts of two messages, and
behind the last. Where a template does not work that way (it moves the system prompt, say), the proof fails and it says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from inferload.content.messages import Role
from inferload.content.prompts import shared_length

# (role, text) pairs, whether the answer is to be opened -> token ids; None where the server refuses such a chat.
TokenizeChat = Callable[[Sequence[tuple[str, str]], bool], list[int] | None]
Ids = tuple[int, ...]

_ONE, _OTHER = "apple", "music"  # texts that differ in every token: what two chats share is the template's


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Token ids before a first message's text (`first`), before a later one's (`opens`), behind it (`closes`), and at the end.

    By role; a role that is not known is taken for the user's. `exactness`: exact where whole chats came out as put
    together from these parts; approximate where they did not; unknown where no server said.
    """

    first: Mapping[Role, Ids] = field(default_factory=dict)
    opens: Mapping[Role, Ids] = field(default_factory=dict)
    closes: Mapping[Role, Ids] = field(default_factory=dict)
    tail: Ids = ()
    exactness: Literal["exact", "approximate", "unknown"] = "unknown"

    def before(self, role: Role, first: bool) -> Ids:
        """The ids in front of a message's text."""
        found = self.first if first else self.opens
        return found.get(role, found.get("user", ()))

    def behind(self, role: Role) -> Ids:
        """The ids behind a message's text."""
        return self.closes.get(role, self.closes.get("user", ()))


NO_TEMPLATE = ChatTemplate()


def measure(tokenize: TokenizeChat) -> ChatTemplate:
    """The template of a server, with some ten calls; `NO_TEMPLATE` where it does not tokenize chats."""
    whole = tokenize([("user", _ONE)], False)
    first_user = _around([("user", "")], 0, tokenize)
    opened = tokenize([("user", _ONE)], True)
    if whole is None or first_user is None or opened is None:
        return NO_TEMPLATE
    tail = tuple(opened[len(whole) :]) if opened[: len(whole)] == whole else ()
    text = whole[len(first_user[0]) : len(whole) - len(first_user[1])]
    template = _with_answers(ChatTemplate({"user": first_user[0]}, {}, {"user": first_user[1]}, tail), text, tokenize)
    template = _with_system(template, text, tokenize)
    return ChatTemplate(template.first, template.opens, template.closes, tail, _proof(template, tokenize))


def _around(chat: list[tuple[str, str]], place: int, tokenize: TokenizeChat) -> tuple[Ids, Ids] | None:
    """The ids before and behind the text at a place of a chat, whatever that text is."""
    role, before, behind = chat[place][0], chat[:place], chat[place + 1 :]
    one, other = (tokenize([*before, (role, text), *behind], False) for text in (_ONE, _OTHER))
    if one is None or other is None:
        return None
    front = shared_length(one, other)
    back = shared_length(one[front:][::-1], other[front:][::-1])
    return tuple(one[:front]), tuple(one[len(one) - back :])


def _with_answers(template: ChatTemplate, text: list[int], tokenize: TokenizeChat) -> ChatTemplate:
    """Adds answers, later messages and tools' results, from what such chats have beyond those before them."""
    opens, closes = dict(template.opens), dict(template.closes)
    chat: list[tuple[str, str]] = [("user", _ONE)]
    so_far = [*template.first["user"], *text, *closes["user"]]
    roles: tuple[Role, ...] = ("assistant", "user", "assistant", "tool")
    for role in roles:
        around = _around([*chat, (role, "")], len(chat), tokenize)
        if around is None or list(around[0][: len(so_far)]) != so_far:
            break
        opens.setdefault(role, around[0][len(so_far) :])
        closes.setdefault(role, around[1])
        chat.append((role, _ONE))
        so_far = [*around[0], *text, *around[1]]
    return ChatTemplate(template.first, opens, closes, template.tail)


def _with_system(template: ChatTemplate, text: list[int], tokenize: TokenizeChat) -> ChatTemplate:
    """Adds a system message in front; templates that have none leave it out."""
    around = _around([("system", ""), ("user", _ONE)], 0, tokenize)
    rest = (*template.before("user", first=False), *text, *template.behind("user"))
    if around is None or around[1][len(around[1]) - len(rest) :] != rest:
        return template
    first, closes = dict(template.first), dict(template.closes)
    first["system"] = around[0]
    closes["system"] = around[1][: len(around[1]) - len(rest)]
    return ChatTemplate(first, template.opens, closes, template.tail)


def _proof(template: ChatTemplate, tokenize: TokenizeChat) -> Literal["exact", "approximate"]:
    """Whether a chat with a system prompt, an answer and a second question is what its parts come to."""
    roles: tuple[Role, ...] = ("system", "user", "assistant", "user")
    chats = [roles, roles[1:], roles[1:2]]
    text = _text_ids(template, tokenize)
    for chat in chats:
        found = tokenize([(role, _ONE) for role in chat], True)
        if found is None or found != _composed(template, chat, text):
            return "approximate"
    return "exact"


def _text_ids(template: ChatTemplate, tokenize: TokenizeChat) -> list[int]:
    whole = tokenize([("user", _ONE)], False) or []
    return whole[len(template.before("user", first=True)) : len(whole) - len(template.behind("user"))]


def _composed(template: ChatTemplate, roles: Sequence[Role], text: list[int]) -> list[int]:
    ids: list[int] = []
    for number, role in enumerate(roles):
        ids += [*template.before(role, first=number == 0), *text, *template.behind(role)]
    return [*ids, *template.tail]
