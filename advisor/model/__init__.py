"""The frozen records that every stage exchanges, and the JSON Schema files made from them."""
