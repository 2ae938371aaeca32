"""What the roles need to know about a target model's folder, and tools that make such folders."""
