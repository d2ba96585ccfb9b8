"""What a person sees of a result: terminal, JSON, HTML and plots. No mathematics here."""
