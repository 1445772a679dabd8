"""What is seen of a patient: collected from /proc and py-spy, never judged here."""
