"""Joins this folder with the source package's `test`, which lacks the module beside this file."""

import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)
