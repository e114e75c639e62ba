"""Changes to a module, its inputs and its optimizer, each in place on an instance of its own."""
