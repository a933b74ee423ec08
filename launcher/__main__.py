# SPDX-License-Identifier: Apache-2.0
"""`python -m pontil.launcher`, which is how an installed launcher starts its children."""

from pontil.launcher.cli import main

main()
