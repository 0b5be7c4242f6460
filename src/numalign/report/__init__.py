"""Reports: render stored records and nothing else. Imports no torch and runs no operator."""
