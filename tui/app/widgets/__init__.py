"""The parts of the screens. A pane paints lines of styled text; frames join panes; nothing here reads the disk."""
