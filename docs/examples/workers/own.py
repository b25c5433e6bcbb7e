# snippet: own
from waymark import serve

def book(arguments, call):
    """The tool: it books with the key, so that the hotel knows a booking that comes again."""
    with open("booked.txt", "a") as f:
        print(arguments["city"], call["key"], file=f)
    return arguments["city"] + " is booked"

def plan(run):
    """The loop. It starts from the beginning each time; recorded steps do not run again."""
    cities = run.get("cities") or run.task.split()
    run.set("cities", cities)
    for city in cities:
        run.tool("book-" + city, "book", {"city": city}, "hold", book)
    said = run.ask("paid", "Are the bookings paid?")
    return {"booked": cities, "paid": said}

serve("planner", run=plan)
# end of own
