"""The Textual app: screens, widgets, reading and drawing."""
