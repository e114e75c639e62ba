"""Finished records to text, and judgements on finished reports: pure functions, no new figures.

`*_document` modules turn a record into blocks, `markdown`, `html` and `plain_document` write them;
`compare*` set two reports side by side, `gate*` hold one against limits.
"""
