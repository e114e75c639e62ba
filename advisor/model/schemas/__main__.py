"""`python -m advisor.model.schemas`: write the schema files after a record type has changed."""

from advisor.model.schemas import write_schemas

write_schemas()
