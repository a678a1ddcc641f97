"""Chinese pages: no text without an entry, no entry without a text, names and numbers unchanged, JSON in English."""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import pytest
import run_kinds
import synthetic_run as synthetic
from code_texts import nodes, text_of
from inferload.analysis.comparison.output import text as comparison
from inferload.analysis.data import frames
from inferload.analysis.pages import shell, texts
from inferload.analysis.pages.glossary import FIGURES
from inferload.analysis.pages.terms import Terms
from inferload.analysis.report import report
from inferload.analysis.report.model import build
from inferload.analysis.study import page as study
from made_sides import compared, sides
from paths import ROOT
from test_study_findings import AFTER, BEFORE, PLAN, pairs, plan_of, results, run

from inferload import cli
from inferload.figures import table
from inferload.figures.limits import gate_grammar
from inferload.figures.table import Table
from inferload.results.documents.summary_document import FirstError, Summary
from inferload.results.open_run import OpenRun
from inferload.results.verdict import failures
from inferload.scenario import language
from inferload.turns.record import Failure

PAGES = ROOT / "analysis" / "pages"
ENTRIES = texts.entries()
WORD = re.compile(r"[A-Za-z]{3,}")
# Abbreviations, and words that are the same in both languages.
SAME = {"", "compared", "TTFT", "TTFO", "ITL", "TPOT", "PNG", "p50", "p99", "p", "ITL, ms", "TTFT, ms", "SLO"}
# Of `compare --format block`, which programs read; and a title of which each form has an entry.
ENGLISH = {"A/B comparison", "metric", "{} and {} runs"}
SPOKEN = re.compile(r'\b_\("([^"]*)"\)')  # in a template


@pytest.fixture
def chinese() -> Iterator[None]:
    with language.used("zh"):
        yield


def normal(key: str) -> str:
    return texts.PLACEHOLDER.sub("{}", key)


def texts_in(node: ast.AST) -> Iterator[str]:
    if (text := text_of(node)) is not None:
        yield text
    else:
        for child in ast.iter_child_nodes(node):
            yield from texts_in(child)


@cache
def sources() -> frozenset[str]:
    """Return the texts of the code, their sentences and clauses, with `{}` for what they insert."""
    found = {text_of(node) or "" for _, node in nodes("inferload", "analysis")}
    found |= {spoken for path in PAGES.glob("*.j2") for spoken in SPOKEN.findall(path.read_text(encoding="utf-8"))}
    found |= {figure.title for figure in FIGURES}
    return frozenset(
        found | {piece.strip().rstrip(".") for text in found for piece in (text, *re.split(r"\. |; ", text))}
    )


@cache
def shapes() -> list[list[str]]:
    """Return the pieces of the f-strings of the code, of those with words of their own."""
    return [text.split("{}") for text in sources() if "{}" in text and re.search(r"[A-Za-z]{4,}", text)]


def is_made(key: str) -> bool:
    """Return True if an f-string of the code can make the key."""
    likely = [pieces for pieces in shapes() if key.startswith(pieces[0]) and key.endswith(pieces[-1])]
    return any(re.fullmatch(".*".join(map(re.escape, pieces)), key) for pieces in likely)


def is_used(key: str) -> bool:
    """Return True if the code has a text, makes it with an f-string, or has its pieces: whole ones if it inserts nothing."""
    if key in sources():
        return True
    pieces = [piece.strip(" 1%=<+->").removesuffix("s") for piece in re.split(r"\{\}|[,;:()]", key.removesuffix(", s"))]
    in_pieces = all(piece.lower() in corpus() if "{}" in key else f"\n{piece.lower()}" in corpus() for piece in pieces)
    return in_pieces or is_made(key)


@cache
def corpus() -> str:
    return "\n" + "\n".join(sources()).lower()


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.j2")), ids=lambda path: path.name)
def test_each_fixed_text_of_a_template_is_looked_up_and_has_a_chinese_one(chinese: None, path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert [text for text in SPOKEN.findall(source) if text not in SAME and texts.tr(text) == text] == []
    environment = shell.environment(escape=path.name.endswith(".html.j2"))
    data = "".join(text if kind == "data" else "\0" for _, kind, text in environment.lex(source))
    shown = re.sub(r"<[^>]*>|&\S+;", "", data)
    assert [word for word in WORD.findall(shown) if word not in SAME] == []


def labels() -> Iterator[tuple[str, str]]:
    """Yield titles and columns of tables, heads, and titles of charts and axes in the code, with their places."""
    places = {"Table": (1, 2), "_of_figures": (2,), "Picture": (1,), "Head": (0,), "title": (0,)}
    for path, call in nodes("analysis", "inferload/results/tables"):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            for at in places.get(call.func.id, ()):
                for text in texts_in(call.args[at]) if at < len(call.args) else ():
                    yield f"{path.name}:{call.lineno}", text


def test_each_label_of_tables_and_charts_has_a_chinese_text(chinese: None) -> None:
    keys = {normal(key) for key in ENTRIES} | SAME | ENGLISH
    lacking = [each for each in labels() if WORD.search(each[1]) and texts.tr(each[1]) == each[1]]
    assert [each for each in lacking if normal(each[1]) not in keys] == []
    assert [title for title in {each.title for each in FIGURES} - SAME if texts.tr(title) == title] == []


def test_no_entry_lacks_its_english_text() -> None:
    assert [key for key in map(normal, ENTRIES) if not is_used(key)] == []


def test_both_languages_have_the_same_placeholders() -> None:
    words = [
        tuple(sorted(word for word, _ in texts.PLACEHOLDER.findall(text)) for text in row) for row in ENTRIES.items()
    ]
    assert [english for english, chinese in words if english != chinese] == []


KEPT = [key for key in ENTRIES if "{" in key and "!" not in key and "+}" not in key]


@pytest.mark.parametrize("values", ["123456", "abcdef"])
def test_names_and_numbers_stay_as_they_are(chinese: None, values: str) -> None:
    for key in KEPT:
        found = [word for word, _ in texts.PLACEHOLDER.findall(key)]
        words = {word: f"{value}-7.5" for word, value in zip(found, values, strict=False)}
        words |= {word: "12.5" for word, mark in texts.PLACEHOLDER.findall(key) if mark == "#" or word == texts.COUNT}
        english, wanted = (texts.PLACEHOLDER.sub(lambda at: words[at[1]], text) for text in (key, ENTRIES[key]))  # noqa: B023
        assert re.sub(r"\W", "", texts.tr(english)) == re.sub(r"\W", "", wanted)


@pytest.mark.parametrize(
    ("english", "wanted"),
    [
        ("users-64: requests waiting 12.4", "users-64：排队请求 12.4"),
        ("at the limit: KV cache usage 95 %, requests waiting 0", "at the limit：KV 缓存使用率 95 %，排队请求 0"),
        ("64 users: -3.1 % (-5.2 to -0.9 %, 6 pairs)", "64 users：-3.1 %（-5.2 至 -0.9 %，6 对）"),
        ("Mean TTFT against old: +2 % (one pair)", "平均 TTFT，相对 old：+2 %（仅一对）"),
        ("not known: the run has no turns", "未知：运行没有轮次"),
        ("invalid: a worker used 99 % of a core (and 2 more)", "无效：某个 worker 用了一个核的 99 %（另有 2 条）"),
        ("note: one published figure, no interval", "注意：只有一个已发表的数值，没有区间"),
        # A sentence is wholly Chinese or wholly English; what follows a label may be English.
        ("12 turns; of a kind without an entry", "12 turns; of a kind without an entry"),
        ("measurement not valid. Of a kind without an entry", "测量无效。Of a kind without an entry"),
        ("note: --a 1; --b against --c; its rate is not known", "注意：--a 1; --b against --c; its rate is not known"),
        ("compared: server arguments: --a; --b against --c; --d", "对比项：服务端参数：--a; --b 与 --c; --d"),
        ("From v0.log", "来自 v0.log"),
        ("1 claim", "1 条论断"),
        ("1 user", "1 个并发用户"),
        ("Not run", "未运行"),
        ("2 users", "2 个并发用户"),
        ("1 more failed gate", "另有 1 个门禁未通过"),
        ("Mean E2E against base: +2 % (one pair)", "平均端到端延迟，相对 base：+2 %（仅一对）"),
        # Prose of others, which has words of entries.
        ("Prefix caching lowers TTFT by 62 %", "Prefix caching lowers TTFT by 62 %"),
        ("The model is large. Turns: many", "The model is large. Turns: many"),
        ("failed: disk full", "failed: disk full"),
    ],
)
def test_sentences(chinese: None, english: str, wanted: str) -> None:
    assert texts.tr(english) == wanted


def test_a_name_that_is_also_a_text_is_kept(chinese: None) -> None:
    shown = texts.table(Table("t", "Latency", ("class", "turns"), [("turns", 3), ("failed", "not known")]))
    assert table.markdown(shown).splitlines()[0] == "## 延迟"
    assert [row[0] for row in shown.rows] == ["turns", "failed"]
    assert shown.rows[1][1] == "未知"
    label = "label: new, variant: b"
    assert "| failed |" in study.markdown(
        plan_of(PLAN.replace(label, label.replace("new", "failed")).replace("row: new", "row: failed")),
        results(*pairs(BEFORE, AFTER)),
    )


def test_a_chinese_report_has_the_lines_and_numbers_of_the_english_one_without_its_words(tmp_path: Path) -> None:
    opened = frames.load(OpenRun(synthetic.write(tmp_path)))
    pages = []
    for chosen in language.LANGUAGES:
        with language.used(chosen):
            page = report.markdown(build(opened, opened.notes), opened.marks)
        pages.append(page.partition("<details>")[0].replace("by hand once", "by hand 1").splitlines())
    numbers = [[sorted(re.findall(r"(?<![A-Za-z\d])\d(?:[\d.,]*\d)?", line)) for line in page] for page in pages]
    assert numbers[0] == numbers[1]
    words = {*WORD.findall("\n".join(pages[1]))} - {*WORD.findall("\n".join(ENTRIES.values()))}
    names = "DONE UTC agent badcafe bench chat cores digest kernel ratio tiny ttft vllm"
    assert words == {*f"{names} the ended finish for silent was without".split()}  # of its names and two messages


@pytest.mark.parametrize("make", [run_kinds._overloaded, lambda: run_kinds._overloaded(5), run_kinds._dead])
def test_headlines_of_overload_and_of_failures_have_a_chinese_text(
    chinese: None, make: Callable[[], dict[str, dict[str, str]]]
) -> None:
    document = make()
    results = msgspec.convert(document, Summary)
    said = [document["outcome"]["headline"], *failures.turn_lines(results)]
    said += [failures.in_short(results)] if results.turns.whole_run.failed else [results.growth.rates]
    assert [text for text in said if texts.tr(text) == text] == []


@pytest.mark.parametrize("unit", sorted(set(gate_grammar._UNITS.values())))
@pytest.mark.parametrize("value", ["1,700", "0.015", "1e-09"])
def test_values_and_intervals_of_gates_have_a_chinese_text_with_every_unit(
    chinese: None, unit: str, value: str
) -> None:
    shown = f"{value} {unit}".rstrip()
    assert (
        texts.tr(f"gate failed: p95(ttft_ms) < 500, measured {shown}")
        == f"门禁未通过：p95(ttft_ms) < 500，实测 {shown}"
    )
    for english, text in (("over", "高于"), ("under", "低于"), ("0.5 to", "0.5 至")):
        assert texts.tr(f"passed; 95 %: {english} {shown}") == f"通过；95 % 置信区间：{text} {shown}"


@pytest.mark.parametrize("failure", Failure)
def test_the_message_of_each_class_of_failure_has_a_chinese_text(chinese: None, failure: Failure) -> None:
    status = 404 if failure.value.startswith("http") else None
    kind = failures.kind_text(FirstError(failure=failure.value, status=status, text="x", at_s=1.0))
    assert texts.tr(f"{kind}: message of a server") != f"{kind}: message of a server"


def test_the_chinese_pages_of_studies_and_comparisons(chinese: None, golden: Callable[[str, str], None]) -> None:
    six = results(*pairs(BEFORE, AFTER), run("b", 6, level="invalid", ttft=1.0))
    plan = plan_of(PLAN.replace("label: new", "label: {en: new, zh: 新}"))
    assert "\n| 新 | 100.1 | 49.99 | 95 % |\n" in study.markdown(plan, six)
    page = study.html(plan, six, plotly="")
    assert "新：平均 TTFT" in page
    assert '<html lang="zh-CN">' in page
    golden("comparison.zh.md", comparison.markdown([compared(*sides(0.10, 8))]))


def test_the_names_of_a_comparison_may_contain_any_text(chinese: None) -> None:
    before, after = sides(0.10, 8)
    named = compared(replace(before, label="A: not tested against B"), replace(after, label="worse: TTFT"))
    assert comparison.spoken(named).startswith("worse: TTFT 与 A: not tested against B 对比：更差，平均 TTFT 高 10.2%")
    assert comparison.headline(named).startswith(
        "worse: TTFT against A: not tested against B: WORSE, Mean TTFT is 10.2% higher"
    )


def test_the_code_in_a_sentence_stays_a_code(chinese: None) -> None:
    assert re.sub("<[^>]*>", "", Terms().sentence("The server kept up (kept-up)")) == "服务端跟得上（kept-up）"


def test_a_chart_keeps_its_data(chinese: None) -> None:
    chart = {
        "data": [{"name": "from send", "x": ["Latency", 1.5], "text": ["failed"]}],
        "layout": {"title": {"text": "in flight"}},
    }
    assert texts.plot(chart) == {
        "data": [{"name": "从发送算起", "x": ["Latency", 1.5], "text": ["failed"]}],
        "layout": {"title": {"text": "进行中"}},
    }


def test_a_language_that_does_not_exist_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", "--lang", "fr", "x"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("--lang: fr: no such language; choose from en, zh")


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LC_MESSAGES": "zh_TW", "LANG": "en_US"}, "zh"),
        ({"LC_ALL": "", "LANG": "zh"}, "zh"),
        ({"LANG": "fr_FR.UTF-8"}, "en"),
        ({}, "en"),
    ],
)
def test_the_locale_chooses_the_language(environment: dict[str, str], wanted: str) -> None:
    assert language.of_environment(environment) == wanted


def test_a_chinese_report_has_the_same_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = synthetic.write(tmp_path)
    written = {}
    for name in ("en", "zh-CN"):
        assert cli.main(["report", str(path), "--lang", name]) == 0
        written[name] = {file.name: file.read_bytes() for file in (*path.glob("*.json"), *path.glob("*.csv"))}
        assert f'<html lang="{name}">' in (path / "report.html").read_text(encoding="utf-8")
    assert written["en"] == written["zh-CN"]
    assert "未通过：3 个门禁中 2 个未通过；44 轮中 1 轮失败" in capsys.readouterr().out
