"""Scripts whose loop is a library's, by themselves and as elastic jobs: docs/how-to/train-with-libraries.md."""
