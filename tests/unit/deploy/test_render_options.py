"""Properties of the options of rendered runs: names, keys, words, network rules, sizes, the token, and refusals of one line."""

import dataclasses
import ipaddress
import os
import re
import shlex
import string
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from inferload.deploy.commands import run_options
from inferload.deploy.render import forms, run_objects, run_plan, yaml_files
from inferload.deploy.render.run_plan import Key, Results, RunPlan, checked_url, name_of
from rendered import objects

from inferload import cli
from inferload.base.errors import UsageError

PLAN = RunPlan("run", "smoke", "http://llama.serving:8000", 2, token=Key("run-token", "token"), made_token="5" * 64)
FORMS = tuple(forms.FORMS)

# -- files

PARTS = st.text(string.ascii_letters + "_-. é{}$中+", min_size=1, max_size=12)
PATHS = st.lists(PARTS, min_size=1, max_size=4).map("/".join).filter(lambda path: ".." not in path)


@given(st.sets(PATHS, max_size=8))
@example({"a/b.py", "a_b.py", "a b.py", ".hidden", "é.py", "x" * 253, "x" * 254, "/".join(["folder"] * 60)})
def test_keys_of_files_are_valid_and_unique(paths: set[str]) -> None:
    """https://kubernetes.io/docs/concepts/configuration/configmap/ , and the check of Kubernetes: IsConfigMapKey."""
    files = run_objects.objects(dataclasses.replace(PLAN, files={path: path for path in paths})).get("files.yaml")
    data = files[0]["data"] if files else {}
    assert len(data) == len(paths)
    for key in data:
        assert re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key)
        assert key != "."
        assert not key.startswith("..")


def test_a_configmap_is_full_at_one_mebibyte() -> None:
    full = {"a.py": "é" * (run_plan.MAX_FILES_BYTES // 2 - 10), "b.py": "x" * 12}
    run_plan.check_size(full)
    with pytest.raises(UsageError) as refused:
        run_plan.check_size({**full, "b.py": "x" * 13})
    assert str(refused.value).startswith(
        "scenario and locustfiles: 1,048,577 bytes, of which a ConfigMap takes 1,048,576; "
    )
    assert str(refused.value).endswith("the largest is a.py: build an image with them")


# -- words

WORDS = st.lists(st.text("$({})=:#-'\"\\ \n\tay018é中\u2028", max_size=12), max_size=4)
SIGNS = "$(HOME) $HOME ${HOME} $$(A) {{ .Values.image }} {{- end }} %s `x` 'y' \"z\""


def unescaped_by_kubernetes(word: str) -> str:
    """Return what a container gets; a variable would be an error: third_party/forked/golang/expansion/expand.go."""
    found = re.split(r"\$(.)", word, flags=re.DOTALL)
    assert "(" not in found[1::2], word
    return "".join(part if index % 2 == 0 else "$" + part.removeprefix("$") for index, part in enumerate(found))


def unescaped_by_compose(word: str) -> str:
    """Return what a container gets; a variable would be an error."""
    assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)", word), word
    return word.replace("$$", "$")


def master_words(form: str, plan: RunPlan) -> list[str]:
    files = forms.FORMS[form].files(plan)
    if form == "compose":
        return [*map(unescaped_by_compose, yaml.safe_load(files["compose.yaml"])["services"]["master"]["command"])]
    found = objects(files, "templates/run.yaml" if form == "helm" else "run.yaml")
    if form == "jobset":
        job = found[-1]["spec"]["replicatedJobs"][0]["template"]["spec"]
    elif form == "kubernetes":
        job = found[1]["spec"]
    elif form == "locusttest-v2":
        return [*map(unescaped_by_kubernetes, found[0]["spec"]["master"]["extraArgs"])]
    else:
        return [*map(unescaped_by_kubernetes, shlex.split(found[0]["spec"]["args"]))]
    return [*map(unescaped_by_kubernetes, job["template"]["spec"]["containers"][0]["args"])]


RUN_FORMS = [form for form in FORMS if form != "helm"]  # which is in test_render_helm.py


def check_words(form: str, words: list[str]) -> None:
    plan = dataclasses.replace(PLAN, options=("--first", *words, "--last"), host="http://$(X).${Y}.{{z}}:1/$HOME")
    found = master_words(form, plan)
    assert found[found.index("--first") + 1 : found.index("--last")] == words
    assert found[found.index("--host") + 1] == plan.host


@pytest.mark.parametrize("form", RUN_FORMS)
def test_words_of_the_run_survive_every_form(form: str) -> None:
    check_words(
        form,
        [SIGNS, "08", "y", "~", "- a", "a: b", "#", "", "\n", "a\n b", "é\u2028", "$", "$$", "a$$$(b)$$c$", "$$$$"],
    )


@given(st.sampled_from(RUN_FORMS), WORDS)
def test_any_words_of_the_run_survive(form: str, words: list[str]) -> None:
    check_words(form, words)


# -- addresses

LABELS = st.text("abz019", min_size=1, max_size=4).map("s{}".format)
ADDRESSES = st.integers(1, 2**32 - 1).map(ipaddress.IPv4Address) | st.integers(2**64, 2**128 - 1).map(
    ipaddress.IPv6Address
)
PORTS = st.none() | st.integers(1, 65535)


@given(st.sampled_from(["http", "https", "dns"]), st.lists(LABELS, min_size=1, max_size=4) | ADDRESSES, PORTS)
@example("http", ["llama"], None)
@example("http", ["llama", "serving", "svc"], 8000)
@example("https", ["llama", "serving", "svc", "cluster", "local"], None)
@example("http", ["vllm-0", "vllm", "serving", "svc", "cluster", "local"], 8000)
@example("https", ["api", "example", "com"], None)
@example("http", ["localhost"], 1)
def test_rules_open_the_address_and_no_more(scheme: str, host: Any, port: int | None) -> None:
    name = ".".join(host) if isinstance(host, list) else f"[{host}]" if host.version == 6 else str(host)
    rules = [*run_objects.egress_to(f"{scheme}://{name}{f':{port}' if port else ''}/path")]
    known = port or {"http": 80, "https": 443}.get(scheme)
    ports = {"ports": [{"protocol": "TCP", "port": known}]} if known else {}
    anywhere = {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}, {"ipBlock": {"cidr": "::/0"}}], **ports}
    if not isinstance(host, list):
        (rule,) = rules
        network = ipaddress.ip_network(rule["to"][0]["ipBlock"]["cidr"])
        assert (network.num_addresses, network.network_address) == (1, host)
        assert {key: value for key, value in rule.items() if key != "to"} == ports
        return
    inside = (
        {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": host[1]}}}]}
        if len(host) > 1
        else None
    )
    if len(host) == 1:
        assert rules == [{"to": [{"podSelector": {}}]}]
    elif len(host) == 2:
        assert rules == [inside, anywhere]
    elif "svc" in host[2:]:  # behind the namespace, also in the name of a pod
        namespace = host[host.index("svc", 2) - 1]
        assert rules == [{"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}]}]
    else:
        assert rules == [anywhere]


OWN = (
    "localhost",
    "LOCALHOST",
    "localhost.",
    "a.localhost",
    "ip6-localhost",
    "127.0.0.1",
    "127.1",
    "127.9.8.7",
    "0177.0.0.1",
    "2130706433",
)
OWN += ("0x7f.1", "[::1]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "0.0.0.0", "0", "[::]", "[::ffff:0:0]")


@pytest.mark.parametrize("host", OWN)
def test_a_host_that_is_the_pod_itself_is_refused(host: str) -> None:
    for url in (f"http://{host}", f"https://{host}:8000/v1", f"http://{host}:1"):
        with pytest.raises(
            UsageError, match=r"^--host http\S+: that is the pod itself; give the address of the server's Service$"
        ):
            checked_url("--host", url)


@pytest.mark.parametrize(
    "url", ["", "llama", "llama:8000", "ftp://x", "http://", "http://:80", "http://[::1", "http://x:99999", "//x"]
)
def test_a_host_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        checked_url("--host", url)
    assert str(refused.value) == f"--host {url}: must be a URL, such as http://SERVICE.NAMESPACE:8000"


@pytest.mark.parametrize(
    "url",
    [
        "http://llama",
        "https://127.example.com",
        "http://10.0.0.1:1",
        "http://[fd00::1]:8000",
        "http://localhost.example",
    ],
)
def test_other_hosts_are_taken(url: str) -> None:
    assert checked_url("--host", url) == url


# -- names

SUFFIXES = (
    "-token",
    "-files",
    "-master",
    "-worker-99999-abcde",
    "-worker-0-99999-abcde",
    "-reader",
    "-run",
    "-runs",
    "-models",
    "-locustfile",
)


@given(st.text(max_size=80))
@example("a" * 80)
@example("-" * 80)
@example("x" * 29 + "-" + "y" * 40)
@example("チャット")
def test_names_leave_room_for_what_controllers_append(scenario: str) -> None:
    name = name_of(scenario)
    for suffix in ("", *SUFFIXES):
        assert len(name + suffix) <= 63
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name + suffix)
    assert run_plan.checked_name("--name", name, run_plan.NAME_CHARS) == name


# -- refusals

REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("--api-key-secret", "Big"), "--api-key-secret Big: must be NAME or NAME/KEY"),
    (("--api-key-secret", "a/b/c"), "--api-key-secret a/b/c: must be NAME or NAME/KEY"),
    (("--ca-configmap", "/key"), "--ca-configmap /key: must be NAME or NAME/KEY"),
    (("--token-secret", "a b"), "--token-secret a b: must be NAME or NAME/KEY"),
    (("--results", "pvc:"), "--results pvc:: must be pvc:NAME, s3://BUCKET/PREFIX or none"),
    (("--results", "s3:///x"), "--results s3:///x: must be pvc:NAME, s3://BUCKET/PREFIX or none"),
    (("--results", "s3://[x"), "--results s3://[x: must be pvc:NAME, s3://BUCKET/PREFIX or none"),
    (("--results", "gs://b"), "--results gs://b: must be pvc:NAME, s3://BUCKET/PREFIX or none"),
    (
        ("--s3-endpoint", "http://minio"),
        "--s3-endpoint http://minio: must be a URL, beside --results s3://BUCKET/PREFIX",
    ),
    (
        ("--results", "s3://b", "--s3-endpoint", "minio:9000"),
        "--s3-endpoint minio:9000: must be a URL, beside --results s3://BUCKET/PREFIX",
    ),
    (("--node-selector", "pool"), "--node-selector pool: must be KEY=VALUE"),
    (("--scraper", "=x"), "--scraper =x: must be KEY=VALUE"),
    (("--scraper", "none", "--scraper", "a=b"), "--scraper none: must be KEY=VALUE"),
    (
        ("--toleration", "k=v:Never"),
        "--toleration k=v:Never: must be KEY[=VALUE][:EFFECT], with EFFECT one of NoSchedule, PreferNoSchedule, NoExecute",
    ),
    (
        ("--toleration", ":NoExecute"),
        "--toleration :NoExecute: must be KEY[=VALUE][:EFFECT], with EFFECT one of NoSchedule, PreferNoSchedule, NoExecute",
    ),
    (("--namespace", "Load"), "--namespace Load: must be a-z, 0-9 and -, at most 63 characters"),
    (("--name", "x" * 41), f"--name {'x' * 41}: must be a-z, 0-9 and -, a letter first, at most 40 characters"),
    (
        ("--name", "locust"),
        "--name locust: Locust reads the variables that Kubernetes sets for such a Service; choose another",
    ),
    (("--format", "locusttest-v2", "--workers", "501"), "--workers 501: a LocustTest of locust.io/v2 has at most 500"),
    (
        ("--format", "compose", "--scraper", "a=b"),
        "--scraper: not with --format compose; leave it out, or use kubernetes",
    ),
    (("--image", "a b"), "--image a b: must be the name of an image"),
    (("--", "--seed", "3", "--run-dir=x"), "-- --run-dir=x: set by the files; use the options before --"),
    (("--", "--processes", "4"), "-- --processes: set by the files; use the options before --"),
    (("--host", "http://u:secret@x.y"), "host: contains a user or password; set a key with --api-key-file"),
    (
        ("--host", "http://[fe80::1%25eth0]:80"),
        "--host http://[fe80::1%25eth0]:80: must be a URL, such as http://SERVICE.NAMESPACE:8000",
    ),
    (
        ("--metrics-url", "http://u:secret@x.y/metrics"),
        "host: contains a user or password; set a key with --api-key-file",
    ),
    (("--pull-secret", "a_b"), "--pull-secret a_b: must be a-z, 0-9 and -, at most 253 characters"),
    (("--workers", "0"), "--workers 0: must be 1 or more"),
    (("--ready-timeout", "0"), "--ready-timeout 0: must be 1 or more"),
    (
        ("--host", "http://127.0.0.1:8000"),
        "--host http://127.0.0.1:8000: that is the pod itself; give the address of the server's Service",
    ),
    (("--metrics-url", "llama:9400"), "--metrics-url llama:9400: must be a URL, such as http://SERVICE.NAMESPACE:8000"),
    (("-f", "/nowhere/users.py"), "-f /nowhere/users.py: "),
]


@pytest.mark.parametrize(("words", "line"), REFUSED)
def test_a_refusal_is_one_line_with_option_and_form(
    command: Callable[..., str], tmp_path: Path, words: tuple[str, ...], line: str
) -> None:
    shown = command("render", "run", "smoke", "--host", "http://x.y", "-o", tmp_path / "out", *words, code=2)
    (found,) = [each for each in shown.splitlines() if each.startswith("inferload: ")]
    assert found == f"inferload: {line}" or (line.endswith(": ") and found.startswith(f"inferload: {line}"))
    assert not [*tmp_path.iterdir()]


def test_objects_of_others_may_have_names_of_several_labels() -> None:
    assert Key.parse("--ca-configmap", "kube-root-ca.crt", "ca.crt").path("/ca") == "/ca/kube-root-ca.crt/ca.crt"
    assert Results.parse("pvc:0.results", None).place == "0.results"


def test_a_locustfile_with_a_blank_is_not_for_an_operator_that_splits_at_blanks() -> None:
    plan = dataclasses.replace(PLAN, locustfile="my users.py", files={"my users.py": "", "smoke": ""})
    with pytest.raises(
        UsageError, match=r"^-f my users.py: the operator splits its path at blanks; give it a name without$"
    ):
        forms.locusttest_v2(plan)
    assert master_words("kubernetes", plan)[:3] == ["locust", "-f", "/files/my users.py"]


def test_a_locustfile_that_is_not_text_is_refused(command: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "users.py").write_bytes(b"# \xff")
    shown = command(
        "render", "run", "smoke", "--host", "http://x.y", "-o", tmp_path / "out", "-f", tmp_path / "users.py", code=2
    )
    (found,) = [each for each in shown.splitlines() if each.startswith("inferload: ")]
    assert found.startswith(f"inferload: -f {tmp_path}/users.py: a file of its folder is not UTF-8 text")
    assert found.endswith("; encode it again")


TEXTS = st.text(string.ascii_letters + string.digits + "=:/.-_ ", max_size=12)


@given(TEXTS)
@example("a=b:NoSchedule")
@example("a")
@example("a:NoExecute")
@example("a=b=c")
def test_parsers_refuse_or_return_all_of_a_text(text: str) -> None:
    with refusal_of("--results", text):
        found = Results.parse(text, None)
        assert {"pvc": f"pvc:{found.place}", "s3": found.place, "none": "none"}[found.kind] == text.rstrip("/")
    with refusal_of("--toleration", text):
        of = run_options._toleration(text)
        value, effect = f"={of['value']}" if "value" in of else "", f":{of['effect']}" if "effect" in of else ""
        assert of["key"] + value + effect == text.removesuffix(":")
        assert of["operator"] == ("Equal" if value else "Exists")
    with refusal_of("--scraper", text):
        assert "=".join(*run_options._labels("--scraper", [text]).items()) == text
    with refusal_of("--token-secret", text):
        key = Key.parse("--token-secret", text, "token")
        assert f"{key.name}/{key.key}" in (text, f"{text}/token", f"{text}token")


@contextmanager
def refusal_of(option: str, text: str) -> Iterator[None]:
    """Let a refusal pass that is one line with the option and its text."""
    try:
        yield
    except UsageError as refused:
        line = str(refused)
    else:
        return
    assert line.startswith(f"{option} {text}: must be ")
    assert "\n" not in line


# -- the token


@pytest.mark.parametrize("form", [form for form in FORMS if form != "locusttest-cloud"])
def test_the_token_is_in_one_file_that_others_cannot_read(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def token_hex(size: int) -> str:
        made.append("ab" * size)
        return made[-1]

    monkeypatch.setattr(run_options.secrets, "token_hex", token_hex)
    modes_at_write: set[int] = set()
    write_text = Path.write_text

    def observed(path: Path, text: str, **more: Any) -> int:
        if made and made[-1] in text:
            modes_at_write.add((path.parent if form == "compose" else path).stat().st_mode & 0o077)
        return write_text(path, text, **more)

    monkeypatch.setattr(Path, "write_text", observed)
    (tmp_path / "secrets").mkdir(mode=0o755)
    before = os.umask(0)
    try:
        for _again in range(2):  # over the files of an earlier one
            assert (
                cli.main(["render", "run", "smoke", "--host", "http://x.y", "--format", form, "-o", str(tmp_path)]) == 0
            )
    finally:
        os.umask(before)
    assert made == ["ab" * 32] * 2
    assert modes_at_write == {0}
    assert not any(made[0] in text for text in capsys.readouterr())
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and made[0] in path.read_text()]
    names = {"helm": "values.yaml", "compose": "secrets/token"}
    assert [str(path.relative_to(tmp_path)) for path in holding] == [names.get(form, "token.yaml")]
    modes = holding[0].stat().st_mode & 0o777, holding[0].parent.stat().st_mode & 0o777
    assert modes == (0o644, 0o700) if form == "compose" else modes[0] == 0o600


def test_files_of_compose_are_readable_for_the_user_of_the_containers(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        words = ("render", "run", "smoke", "--host", "http://x.y", "--format", "compose", "-o", str(tmp_path / "run"))
        assert cli.main([*words]) == 0
    finally:
        os.umask(before)
    (file,) = (tmp_path / "run" / "files").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o644, 0o755)
    (tmp_path / "run" / "mine.json").write_text("{}")
    with pytest.raises(UsageError, match=r"has other files \(.*mine.json\); empty it, or name another folder"):
        yaml_files.write(tmp_path / "run", {"run.yaml": ""})


def test_an_operator_that_wants_a_file_has_one() -> None:
    texts = forms.locusttest_cloud(dataclasses.replace(PLAN, files={}, scenario="agentx"))
    (files,) = yaml.safe_load_all(texts["files.yaml"])
    (run,) = yaml.safe_load_all(texts["run.yaml"])
    assert run["spec"]["locustfile"] == {"configMap": {"name": files["metadata"]["name"]}}
    assert "--scenario agentx" in run["spec"]["args"]


def test_each_process_has_the_options_that_it_needs() -> None:
    options = ("--seed", "3", "--header", "X: -y", "--api-key-file=/k", "--gate", "g")
    plan = dataclasses.replace(PLAN, options=options)
    assert [word for word in plan.worker_command("m") if word in options] == ["--header", "X: -y", "--api-key-file=/k"]
    assert sorted(word for word in plan.master_command() if word in options) == sorted(options)


def test_a_token_that_is_there_is_in_no_file(tmp_path: Path, command: Callable[..., str]) -> None:
    command("render", "run", "smoke", "--host", "http://x.y", "-o", tmp_path, "--token-secret", "mine/word")
    assert not (tmp_path / "token.yaml").exists()
    assert "/secrets/mine/word" in (tmp_path / "run.yaml").read_text()
    assert command(
        "render",
        "run",
        "smoke",
        "--host",
        "http://x.y",
        "-o",
        tmp_path,
        "--format",
        "compose",
        "--token-secret",
        "m",
        code=2,
    ).endswith("inferload: --token-secret: not with --format compose; leave it out, or use kubernetes\n")


def test_two_runs_have_two_tokens(tmp_path: Path, command: Callable[..., str]) -> None:
    tokens = set()
    for name in ("a", "b"):
        command("render", "run", "smoke", "--host", "http://x.y", "-o", tmp_path / name)
        (secret,) = yaml.safe_load_all((tmp_path / name / "token.yaml").read_text())
        tokens.add(secret["stringData"]["token"])
    assert len(tokens) == 2
    assert all(re.fullmatch(r"[0-9a-f]{64}", token) for token in tokens)
