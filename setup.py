"""What pyproject.toml has no words for: where the packages lie.

A wheel has them in the folder ``secondhand``, where they hide no other package of their names; an
editable install imports them from where they are.
"""

import sys

from setuptools import find_namespace_packages, setup

INSIDE = ("app", "fields", "learners", "datasets")
DATA = {
    "app": "templates/*",
    "datasets.spectrograms": "presets/*.yaml",
    "fields.cameras": "templates/*",
    "fields.loop": "templates/*",
    "learners": "presets/*.yaml",
    "learners.backbones": "*.txt",
    "learners.report": "templates/*",
}


def place(package: str) -> str:
    inside = package.split(".")[0] in INSIDE and "editable_wheel" not in sys.argv
    return f"secondhand.{package}" if inside else package


# With those that hold data alone.
found = find_namespace_packages(include=[f"{name}*" for name in INSIDE], exclude=["*__pycache__*"])
setup(
    packages=["secondhand", *map(place, found)],
    package_dir={place(name): name for name in INSIDE},
    package_data={place(name): [files] for name, files in DATA.items()},
)
