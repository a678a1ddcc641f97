"""Chat template of a server, inferred from the token ids of whole chats.

A template consists of the token ids before the text of the first message, between the texts of two messages, and after the
last one. A template that works differently, for example one that moves the system prompt, fails the verification.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from inferload.workload.content.messages import Role
from inferload.workload.content.prompts import shared_length

# (role, text) pairs, whether to add the generation prompt -> token ids; None if the server refuses the chat.
TokenizeChat = Callable[[Sequence[tuple[str, str]], bool], list[int] | None]
Ids = tuple[int, ...]

_ONE, _OTHER = "apple", "music"  # texts that differ in every token: shared ids belong to the template


class ChatTemplate(Struct, frozen=True):
    """Token ids before the text of the first message (`first`), of later ones (`opens`), after it (`closes`), and at the end.

    By role; unknown roles use those of the user. `exactness`: exact: verified on whole chats; approximate: the verification
    failed; unknown: not measured.
    """

    first: Mapping[Role, Ids] = field(default_factory=dict)
    opens: Mapping[Role, Ids] = field(default_factory=dict)
    closes: Mapping[Role, Ids] = field(default_factory=dict)
    tail: Ids = ()
    exactness: Literal["exact", "approximate", "unknown"] = "unknown"

    def before(self, role: Role, first: bool) -> Ids:
        """Return the ids before the text of a message."""
        by_role = self.first if first else self.opens
        return by_role.get(role, by_role.get("user", ()))

    def behind(self, role: Role) -> Ids:
        """Return the ids after the text of a message."""
        return self.closes.get(role, self.closes.get("user", ()))


NO_TEMPLATE = ChatTemplate()


def measure(tokenize: TokenizeChat) -> ChatTemplate:
    """Measure the template of a server with about ten calls; `NO_TEMPLATE` if it does not tokenize chats."""
    whole = tokenize([("user", _ONE)], False)
    first_user = _around([("user", "")], 0, tokenize)
    opened = tokenize([("user", _ONE)], True)
    if whole is None or first_user is None or opened is None:
        return NO_TEMPLATE
    tail = tuple(opened[len(whole) :]) if opened[: len(whole)] == whole else ()
    text = whole[len(first_user[0]) : len(whole) - len(first_user[1])]
    template = _with_answers(ChatTemplate({"user": first_user[0]}, {}, {"user": first_user[1]}, tail), text, tokenize)
    template = _with_system(template, text, tokenize)
    return ChatTemplate(template.first, template.opens, template.closes, tail, _verified(template, text, tokenize))


def _around(chat: list[tuple[str, str]], number: int, tokenize: TokenizeChat) -> tuple[Ids, Ids] | None:
    """Return the ids before and after the text of a message of a chat."""
    role, before, behind = chat[number][0], chat[:number], chat[number + 1 :]
    first, second = (tokenize([*before, (role, text), *behind], False) for text in (_ONE, _OTHER))
    if first is None or second is None:
        return None
    front = shared_length(first, second)
    back = shared_length(first[front:][::-1], second[front:][::-1])
    return tuple(first[:front]), tuple(first[len(first) - back :])


def _with_answers(template: ChatTemplate, text: list[int], tokenize: TokenizeChat) -> ChatTemplate:
    """Add answers, later user messages and tool results, by the ids that each adds to the chat before it."""
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
    """Add the system message; templates without system messages leave it out."""
    around = _around([("system", ""), ("user", _ONE)], 0, tokenize)
    rest = (*template.before("user", first=False), *text, *template.behind("user"))
    if around is None or around[1][len(around[1]) - len(rest) :] != rest:
        return template
    first, closes = dict(template.first), dict(template.closes)
    first["system"] = around[0]
    closes["system"] = around[1][: len(around[1]) - len(rest)]
    return ChatTemplate(first, template.opens, closes, template.tail)


def _verified(template: ChatTemplate, text: list[int], tokenize: TokenizeChat) -> Literal["exact", "approximate"]:
    """Compare whole chats, the longest with system prompt, answer and second question, with their composition."""
    roles: tuple[Role, ...] = ("system", "user", "assistant", "user")
    chats = [roles, roles[1:], roles[1:2]]
    for chat in chats:
        ids = tokenize([(role, _ONE) for role in chat], True)
        if ids is None or ids != _composed(template, chat, text):
            return "approximate"
    return "exact"


def _composed(template: ChatTemplate, roles: Sequence[Role], text: list[int]) -> list[int]:
    ids: list[int] = []
    for number, role in enumerate(roles):
        ids += [*template.before(role, first=number == 0), *text, *template.behind(role)]
    return [*ids, *template.tail]
