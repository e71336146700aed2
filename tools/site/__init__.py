"""The site of the documentation, which `mkdocs build` makes: what mkdocs.yml names lies here."""
