"""The machines that are shipped: one YAML each; instruction tables in `isa/`; `chip.schema.json` for editors."""
