"""From plain data to text: one module per output format, all drawing the same document.

`grid` holds the parts a document is made of, `svg` the pictures among them; `text`, `table`, `markdown` and `html`
each have one function ``draw(document, ...) -> str``, and `svg.document` draws the pictures alone. `jsonout` writes
the machine-readable answer, which is no drawing: it carries raw bytes under the names of the JSON contract.
"""
